"""looks_like_write: judged by the words of names, of commands, of code and of SQL (DESIGN 5.5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_loopwatch.fingerprint import looks_like_write

WRITING_NAMES = """create_issue writeFile TodoWrite MultiEdit NotebookEdit edit update_reservation_flights delete-row
user.delete remove_item insert append_note str_replace send_email slack_post_message post_comment put_object submit
book_reservation cancel_order pay pay_invoice transfer_to_human_agents install_package git_commit push move_file
rename upload apply_patch patch set_status kv_set modify_pending_order_items exchange_delivered_order_items
return_delivered_order_items click fill_form mcp__github__create_issue find_and_replace get_or_create write_fix
issue_refund turn_on_light schedule_meeting add_to_cart reset_password close_issue replyToEmail"""

READING_NAMES = """get_order_details read_file list_deleted_items search search_posts find_user_id_by_email check_status
calculate think open view lookup get_updates order_status exchange_rate book_search post_details set_lookup add
add_numbers run_tests finish WebFetch query_update_log verify_write is_deleted analyze_write_path commit_history
patch_notes compare transfer_status blog_post getPatchNotes fetch_comments say_hello conversation answer"""

WRITING_COMMANDS = r"""sed -i 's/a/b/' f.py
rm -rf build
cd /repo && mv a b
cp a b
mkdir -p x/y
echo hi > out.txt
echo hi >>out.txt
python gen.py > data.json 2>&1
ls | tee files.txt
pip install -e .
python -m pip install numpy
uv pip install x
npm i left-pad
apt-get update && apt-get install -y gcc
sudo apt install gcc
git commit -am 'fix: > rm'
git -C /repo checkout main
git stash
git apply fix.diff
patch -p1 < fix.diff
chmod +x run.sh
touch a
PYTHONPATH=. touch a
cat <<'EOF' > f.py\nprint(1)\nEOF
cat > f.py << EOF\nprint(1)\nEOF
curl -X POST https://h/x -d '{}'
curl -O https://h/f.tgz
wget https://h/f.tgz
find . -name '*.pyc' -delete
find . -name '*.pyc' -exec rm {} +
ls | xargs rm
for f in *.txt; do mv $f x/; done
tar xzf a.tgz
tar -czf a.tgz dir
kubectl apply -f x.yml
docker compose up -d
psql -c "UPDATE users SET a = 1"
sqlite3 db.sqlite 'DROP TABLE x'
python -c "open('f', 'w').write('x')"
python - <<'EOF'\nimport os\nos.remove('x')\nEOF
bash -c 'rm x'
black .
perl -pi -e 's/a/b/' f
str_replace_editor create /a --file_text x
edit 1:3\nnew text\nend_of_edit
aws s3 cp a s3://b
gh pr create --fill
kill 123
(cd x && rm y)
if true; then rm x; fi
A=1 B=2 env C=3 rm x
crontab f"""

READING_COMMANDS = r"""ls -la
cd /repo && python reproduce.py
cat f.py | grep 'rm -rf' | head
grep -rn "create" src
echo 'a > b'
python test.py 2>&1
python test.py 2>/dev/null
make test > /dev/null
make test > /dev/null 2>&1
git status && git diff
git log --oneline
git stash list
find . -name '*.py' -exec grep -l x {} \;
sed -n 1,10p f.py
awk '$1 > 3 {print}' f
[[ 3 > 2 ]] && echo yes
pip list
pip show numpy
npm test
npm run build
curl -s https://h/x
curl https://h/x | jq .
wget -q -O - https://h/x
tar -tzf a.tgz
kubectl get pods
docker ps
psql -c "SELECT * FROM updates"
python -c "print(open('f').read())"
python - <<'EOF'\nprint('rm x')\nEOF
black --check .
str_replace_editor view /a
crontab -l
kill -0 123
ps aux
which python
pytest -k 'install or update'
# rm everything
A=1 B=2
git --help
cat f # > g
export A=1"""

WRITING_SQL = """INSERT INTO t VALUES (1)
update t set a = 1
DELETE FROM t WHERE id = 1
CREATE TABLE t (a int)
CREATE OR REPLACE VIEW v AS SELECT 1
drop index i
ALTER TABLE t ADD COLUMN a int
WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x
SELECT 1; TRUNCATE TABLE t
MERGE INTO t USING s ON t.a = s.a
GRANT ALL ON t TO u"""

READING_SQL = """SELECT * FROM t
SELECT 'DELETE FROM t'
SELECT update_time, created FROM updates
SHOW TABLES
DESCRIBE t
EXPLAIN SELECT 1
how do I update my plan?
SELECT replace(a, 'x', 'y') FROM t
-- DELETE FROM t"""


def lines(text: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in text.splitlines()]


@pytest.mark.parametrize("name", WRITING_NAMES.split())
def test_a_name_with_a_verb_of_change_writes(name):
    assert looks_like_write(name, {"id": "x"}) is True


@pytest.mark.parametrize("name", READING_NAMES.split())
def test_a_name_that_asks_does_not_write(name):
    assert looks_like_write(name, {"id": "x"}) is False


@pytest.mark.parametrize("command", lines(WRITING_COMMANDS))
def test_a_command_that_changes_something_writes(command):
    assert looks_like_write("bash", {"command": command}) is True


@pytest.mark.parametrize("command", lines(READING_COMMANDS))
def test_a_command_that_looks_does_not_write(command):
    assert looks_like_write("bash", {"command": command}) is False


@pytest.mark.parametrize("statement", lines(WRITING_SQL))
def test_a_statement_that_changes_data_writes(statement):
    assert looks_like_write("sql", {"query": statement}) is True


@pytest.mark.parametrize("statement", lines(READING_SQL))
def test_a_statement_that_asks_does_not_write(statement):
    assert looks_like_write("run_sql", {"query": statement}) is False


@pytest.mark.parametrize(
    "arguments, writes",
    [
        ({"command": "view", "path": "/a"}, False),
        ({"command": "create", "path": "/a", "file_text": "x"}, True),
        ({"command": "str_replace", "path": "/a", "old_str": "x"}, True),
        ({"command": "insert", "path": "/a", "insert_line": 1}, True),
        ({"command": "undo_edit", "path": "/a"}, True),
        ({"path": "/a", "view_range": [1, 5]}, False),
        ({"path": "/a", "old_str": "x", "new_str": "y"}, True),
    ],
)
def test_a_tool_that_does_several_things_is_judged_by_the_argument_that_says_which(arguments, writes):
    assert looks_like_write("str_replace_editor", arguments) is writes


@pytest.mark.parametrize(
    "tool, arguments, writes",
    [
        ("http", {"method": "POST", "url": "u"}, True),
        ("http", {"method": "GET", "url": "u"}, False),
        ("browser", {"action": "click", "selector": "a"}, True),
        ("browser", {"action": "get_text", "selector": "a"}, False),
        ("python", {"command": "nums.insert(0, 1)\nif a > b:\n    print(a)"}, False),
        ("python", {"code": "import shutil\nshutil.rmtree('x')"}, True),
        ("execute_python", {"code": "open('f.txt', 'w').write('x')"}, True),
        ("execute_python", {"code": "df = pd.read_csv('x')\nprint(df)"}, False),
        ("jupyter", {"code": "!pip install pandas"}, True),
        ("jupyter", {"code": "import subprocess\nsubprocess.run(['rm', 'x'])"}, True),
        ("terminal", {"argv": ["rm", "-f", "x"]}, True),
        ("terminal", {"commands": ["ls", "rm x"]}, True),
        ("terminal", {"input_line": "mkdir x"}, True),
        ("search", {"query": "delete from cart; rm -rf"}, False),
        ("think", {"command": "rm -rf /"}, False),
        ("ask_user", {"question": "Shall I rm -rf it > now?"}, False),
        ("call_action", {"name": "a1"}, False),
    ],
)
def test_what_a_call_does_is_found_where_it_is_said(tool, arguments, writes):
    assert looks_like_write(tool, arguments) is writes


def test_names_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("otel_loopwatch.fingerprint.writes._MAX_NAMES", 2)
    monkeypatch.setattr("otel_loopwatch.fingerprint.writes._names", names := {})
    assert [looks_like_write(f"{verb}_it", {}) for verb in ("get", "write", "read", "edit", "list")] == [
        False,
        True,
    ] * 2 + [False]
    assert len(names) <= 2


@pytest.mark.parametrize("arguments", [None, 5, {"command": object()}, {"command": None}, {1: 2}])
def test_arguments_of_any_kind_are_survived(arguments):
    assert looks_like_write("bash", arguments) is False


@given(st.text(max_size=60), st.dictionaries(st.sampled_from(["command", "query", "code", "x"]), st.text(max_size=200)))
@settings(max_examples=150, deadline=None)
def test_the_answer_is_one_and_the_same(tool, arguments):
    assert looks_like_write(tool, arguments) is looks_like_write(tool, dict(arguments))
