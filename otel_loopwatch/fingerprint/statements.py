"""Does a shell command, a piece of code or an SQL statement change something? By its words, without a parser."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["code_writes", "shell_writes", "sql_writes"]

MAX_TEXT: Final = 8000
"""Characters looked at."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS: Final = _words(
    """rm rmdir mv cp mkdir touch tee patch chmod chown chgrp ln dd truncate shred unlink mkfifo install rsync scp
    kill pkill killall useradd usermod userdel adduser deluser groupadd groupdel passwd mkfs mount umount unzip zip
    gzip gunzip bzip2 bunzip2 xz unxz zstd 7z reboot shutdown crontab visudo ed ex write edit insert append create
    str_replace replace undo_edit submit apply_patch applypatch del erase copy move ren rename md rd set-content
    add-content new-item remove-item copy-item move-item rename-item out-file"""
)
"""Commands that change files or the system whatever their options, and the editing commands that agents are given."""

_SUBCOMMANDS: Final[dict[str, frozenset[str]]] = {
    "git": _words(
        """commit checkout apply push pull merge rebase reset revert stash clone init add rm mv am cherry-pick restore
        switch clean submodule worktree"""
    ),
    "hg": _words("commit update push pull merge revert add rm rename clone init"),
    "svn": _words("commit update switch merge revert add delete copy move checkout"),
    "pip": _words("install uninstall"),
    "uv": _words("install uninstall add remove sync init"),
    "npm": _words("install i ci uninstall update add remove link publish init"),
    "yarn": _words("install add remove upgrade up init publish"),
    "apt": _words("install remove purge update upgrade autoremove dist-upgrade"),
    "brew": _words("install uninstall upgrade update"),
    "cargo": _words("install add remove new init update publish"),
    "go": _words("install get"),
    "gem": _words("install uninstall update"),
    "conda": _words("install create remove update"),
    "docker": _words(
        "run build rm rmi create start stop restart kill pull push tag exec up down compose prune cp commit"
    ),
    "kubectl": _words("apply create delete patch scale edit replace set rollout label annotate drain cordon run"),
    "helm": _words("install upgrade uninstall rollback"),
    "terraform": _words("apply destroy import"),
    "systemctl": _words("start stop restart reload enable disable mask unmask"),
    "service": _words("start stop restart reload"),
    "aws": _words("cp mv rm sync mb rb"),
    "gh": _words("create close merge edit delete comment reopen"),
}
_SUBCOMMANDS.update(
    {
        "pip3": _SUBCOMMANDS["pip"],
        "pipx": _SUBCOMMANDS["pip"],
        "poetry": _SUBCOMMANDS["uv"],
        "pdm": _SUBCOMMANDS["uv"],
        "pnpm": _SUBCOMMANDS["npm"],
        "bun": _SUBCOMMANDS["npm"],
        "apt-get": _SUBCOMMANDS["apt"],
        "dnf": _SUBCOMMANDS["apt"],
        "yum": _SUBCOMMANDS["apt"],
        "apk": _words("add del update upgrade"),
        "mamba": _SUBCOMMANDS["conda"],
        "podman": _SUBCOMMANDS["docker"],
    }
)
_CLOUD: Final = frozenset(("aws", "gcloud", "az", "gh"))
_CLOUD_VERBS: Final = (
    "create",
    "delete",
    "put",
    "update",
    "run-instances",
    "terminate",
    "start",
    "stop",
    "deploy",
    "set-",
)

_OPTIONS: Final[dict[str, str]] = {
    "sed": r"\s(?:-[a-zA-Z]*i|--in-place)",
    "perl": r"\s-[a-zA-Z0-9]*i",
    "ruby": r"\s-[a-zA-Z]*i",
    "awk": r"\s-i\s*inplace",
    "gawk": r"\s-i\s*inplace",
    "sort": r"\s(?:-o|--output)",
    "find": (r"\s-(?:delete|fprint)\b|\s-(?:exec|execdir|ok)\s+(?:\S*/)?(?:rm|mv|cp|chmod|chown|sed\s+-i|touch|ln)\b"),
    "tar": r"\s(?:-?[a-zA-Z]*[xcru][a-zA-Z]*(?=\s)|--(?:extract|create|append|update|delete)\b)",
    "curl": (
        r"\s(?:(?:-X|--request)[\s=]*(?:POST|PUT|PATCH|DELETE)|-d\b|--data|-F\b|--form|-T\b|--upload-file|-[a-zA-Z]*[oO](?=\s)|--output"
        r"|--remote-name)"
    ),
    "wget": r"^(?!.*\s(?:--spider|-[a-z]*O\s*-)(?:\s|$))",
    "http": r"\s(?:POST|PUT|PATCH|DELETE)\s",
    "sysctl": r"\s-w\b",
    "vim": r"\s-[a-z]*[cs]\b|\s\+",
    "black": r"^(?!.*\s--(?:check|diff))",
    "isort": r"^(?!.*\s--(?:check|diff|check-only))",
    "ruff": r"\s(?:--fix\b|format\b(?!.*--(?:check|diff)))",
    "prettier": r"\s(?:-w|--write)\b",
    "eslint": r"\s--fix\b",
}
"""Options with which a command writes. Text: a pattern is compiled (and kept, by re) when its command is first met."""

_DATABASES: Final = frozenset(("psql", "mysql", "sqlite3", "mariadb", "sqlcmd", "duckdb", "clickhouse-client", "cqlsh"))
_INTERPRETERS: Final = frozenset(("python", "python3", "python2", "ipython", "node", "ruby", "perl", "php"))
_LISTS_TOO: Final = frozenset(("crontab", "kill", "mount"))
_SHELLS: Final = frozenset(("bash", "sh", "zsh"))
_EDITORS: Final = ("editor", "edit_tool")
_WRAPPERS: Final = _words(
    "sudo doas time nohup env exec command then do else elif if while until xargs timeout nice stdbuf eval & !"
)

_SUSPECTS: Final = _ALWAYS.union(_SUBCOMMANDS, _OPTIONS, _DATABASES, _INTERPRETERS, _CLOUD, _SHELLS)
_NAMES: Final = re.compile(r"[\w-][\w.-]*")
_CODE_START: Final = re.compile(
    r"\s*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+.*:|import\s+\w|from\s+[\w.]+\s+import\b|@\w+\s*$|print\("
    r"|\w+\s+=\s|with\s+.*:\s*$|try:)",
    re.MULTILINE,
)

_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?(?:\n\s*\2(?=\s*(?:\n|$))|\Z)", re.DOTALL)
_QUOTED: Final = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_TESTS: Final = re.compile(r"\[\[.*?\]\]|\(\(.*?\)\)", re.DOTALL)
_REDIRECTION: Final = re.compile(
    r"(?<![-=<>&\w])(?:\d|&)?>{1,2}\|?\s*(?![&>\s(]|/dev/(?:null|stdout|stderr|tty|fd)\b)\S|(?<=\w)>{1,2}\s*(?![&>=\s(]|/dev/)\S"
)
_SEPARATORS: Final = re.compile(r"\|\|?&?|&&|;|\n|\$\(|`|(?<![<>&])&(?![>&\d])")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=\S*\Z")
_NO_COMMAND: Final = re.compile(r"-|\d+[smh]?\Z|\{\}")

_SQL: Final = re.compile(
    r"\b(?:insert\s+(?:or\s+\w+\s+|ignore\s+|overwrite\s+)?into|replace\s+into|update\s+[\w.`\"\[\]]+\s+(?:(?:as\s+)?\w+\s+)?set\b|delete\s+from"
    r"|(?:create|drop|alter)\s+(?:or\s+replace\s+|temp(?:orary)?\s+|unique\s+|materialized\s+|external\s+|global\s+)*(?:table|index|view|database"
    r"|schema|function|procedure|trigger|user|role|sequence|type|extension|column|constraint)\b"
    r"|truncate\s+(?:table\s+)?\w+\s*(?:;|$)|merge\s+into|grant\s+\w[\w\s,]*\son\b|revoke\s+\w[\w\s,]*\son\b|detach\s+delete)",
    re.IGNORECASE,
)
_SQL_VERBS: Final = _words("insert replace update delete create drop alter truncate merge grant revoke detach")
_SQL_SPLIT: Final = str.maketrans(";()\"'`*/", " " * 8)
_SQL_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)

_CODE: Final = re.compile(
    r"""open\s*\([^)\n]*,\s*(?:mode\s*=\s*)?['"][rb]*[wax+]|\.write_(?:text|bytes)\s*\(|\.to_(?:csv|excel|json|parquet|pickle|sql)\s*\(\s*[^)\s]
    |\bos\.(?:remove|unlink|rename|replace|mkdir|makedirs|rmdir|removedirs|chmod|symlink|truncate)\s*\(
    |\bshutil\.\w+\s*\(|\.(?:unlink|mkdir|rmdir|touch)\s*\(|\b(?:requests|httpx|session|client)\.(?:post|put|patch|delete)\s*\(
    |\bfs\.(?:write|append|unlink|rm|mkdir|rename|copy)\w*\s*\(|\.savefig\s*\(|\b(?:json|pickle|yaml|joblib)\.dump\s*\(|\.commit\s*\(\s*\)""",
    re.VERBOSE,
)
_CODE_COMMANDS: Final = re.compile(
    r"""(?:os\.system|os\.popen|subprocess\.\w+|check_output|check_call)\s*\(\s*\[?\s*[frb]*(['"]{1,3})(.+?)\1|^[^\S\n]*[!%](?:\w*\s+)?(.+)$""",
    re.DOTALL | re.MULTILINE,
)


def sql_writes(text: str) -> bool:
    """True where an SQL statement changes data or schema. Prose that names the same words is not SQL."""
    text = text[:MAX_TEXT]
    # Most statements read, and a set of words is found wanting faster than a pattern.
    if _SQL_VERBS.isdisjoint(text.lower().translate(_SQL_SPLIT).split()):
        return False
    return _SQL.search(_SQL_QUOTED.sub("''", text)) is not None


def code_writes(text: str) -> bool:
    """True where code writes or removes files, sends something, or runs a shell command that does."""
    text = text[:MAX_TEXT]
    if _CODE.search(text) is not None:
        return True
    return any(shell_writes(found[1] or found[2]) for found in _CODE_COMMANDS.findall(text))


def shell_writes(text: str) -> bool:
    """True where a command of a shell text changes files, packages, repositories, processes or remote state."""
    text = text[:MAX_TEXT]
    if _CODE_START.match(text) is not None:
        return code_writes(text)
    # Most commands read, and a set of words is found wanting faster than a parse.
    if ">" not in text and "edit" not in text and _SUSPECTS.isdisjoint(map(str.lower, _NAMES.findall(text))):
        return False
    bodies: list[str] = []
    if "<<" in text:
        bodies = [found.group(0) for found in _HEREDOC.finditer(text)]
        text = _HEREDOC.sub(r" <<\3 ", text)
    quoted: list[str] = []

    def keep(found: re.Match[str]) -> str:
        part = found.group(0)
        if part[0] == "\\":
            return " " if part[1] == "\n" else "_"
        quoted.append(part[1:-1])
        return "\x00" if part.isspace() or " " in part or len(part) > 40 else part[1:-1].replace(">", "_") or "\x00"

    bare = _QUOTED.sub(keep, text) if "'" in text or '"' in text or "\\" in text else text
    if "#" in bare:
        bare = _COMMENT.sub("", bare)
    if ">" in bare and _redirects(bare):
        return True
    return any(_segment_writes(segment, quoted, bodies) for segment in _SEPARATORS.split(bare))


def _redirects(bare: str) -> bool:
    """True where output goes into a file."""
    bare = bare.replace("2>&1", "").replace("2>/dev/null", "")
    if "[[" in bare or "((" in bare:
        bare = _TESTS.sub(" ", bare)
    return ">" in bare and _REDIRECTION.search(bare) is not None


def _segment_writes(segment: str, quoted: list[str], bodies: list[str]) -> bool:
    """One simple command."""
    words = _unwrapped(segment.split())
    if not words:
        return False
    command = words[0].rpartition("/")[2].lower()
    rest = words[1:]
    if command in _ALWAYS:
        return not (command in _LISTS_TOO and (not rest or rest[0] in ("-l", "-0")))
    option = _OPTIONS.get(command)
    if option is not None:
        return re.search(option, f" {' '.join(rest)} ") is not None
    subcommands = _SUBCOMMANDS.get(command)
    if subcommands is not None:
        return _subcommand_writes(command, subcommands, rest)
    return _inner_text_writes(command, rest, [*quoted, *bodies])


def _unwrapped(words: list[str]) -> list[str]:
    """The words from the command on: without ``sudo``, ``then``, ``A=b`` and the like."""
    wrapped = False
    for at, word in enumerate(words):
        bare = word.lstrip("({")
        if bare in _WRAPPERS or not bare:
            wrapped = True
        elif not (_ASSIGNMENT.match(bare) or (wrapped and _NO_COMMAND.match(bare))):
            return [bare, *words[at + 1 :]]
    return []


def _inner_text_writes(command: str, rest: list[str], texts: list[str]) -> bool:
    """A command that is given SQL, code or further commands, in quotes or as a here-document."""
    if command in _DATABASES:
        return any(map(sql_writes, (*texts, " ".join(rest))))
    if command in _INTERPRETERS:
        if rest[:1] == ["-m"] and rest[1:2] in (["pip"], ["uv"]):
            return _subcommand_writes("pip", _SUBCOMMANDS["pip"], rest[2:])
        return any(map(code_writes, texts))
    if command in _SHELLS:
        return any(map(shell_writes, texts))
    return command.endswith(_EDITORS) and bool(rest) and rest[0] in _ALWAYS


def _subcommand_writes(command: str, subcommands: frozenset[str], rest: list[str]) -> bool:
    named = [word for word in rest if not word.startswith("-")]
    if command in _CLOUD and any(word.startswith(_CLOUD_VERBS) for word in named[:4]):
        return True
    if "--dry-run" in rest or "--help" in rest:
        return False
    if command == "git":
        # An option before the subcommand may take a word: git -C dir commit.
        if rest[:1] in (["-C"], ["-c"]):
            named = named[1:]
        if named[:1] == ["stash"]:
            return named[1:2] not in (["list"], ["show"])
        return bool(named) and named[0] in subcommands
    return not subcommands.isdisjoint(named[:3])
