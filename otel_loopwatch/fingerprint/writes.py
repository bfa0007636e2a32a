"""Does a call look as if it changed something? A guess from names and commands, for tools whose author did not say.

A wrong "yes" lets a loop run a little longer (a repeated write counts as a change once only); a wrong "no" takes the
test run after an edit for a repetition. Words and commands here are general ones, of shells, of SQL and of the verbs
in which tools are named; no agent's tools are listed.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_loopwatch.fingerprint.statements import code_writes, shell_writes, sql_writes

__all__ = ["looks_like_write"]


class _Name(enum.Enum):
    READ = 1
    WRITE = 2
    OPEN = 3
    """The name does not tell."""
    SHELL = 4
    """The name does not tell, but that it runs commands."""
    CODE = 5
    """The same for code."""
    ROUTER = 6
    """A name with a verb, but of a thing that does several: ``str_replace_editor``."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WRITES: Final = _words(
    """create write edit update delete remove insert append replace send submit cancel pay install uninstall push
    rename upload apply save modify exchange refund purchase buy sell withdraw deposit charge reserve unreserve upsert
    overwrite persist put mkdir rmdir chmod chown rm mv cp touch move copy deploy undeploy launch provision start
    stop restart shutdown reboot terminate kill destroy erase wipe purge clear truncate drop disable enable activate
    deactivate approve reject accept decline assign unassign invite subscribe unsubscribe unfollow archive unarchive
    restore revert rollback undo redo reset grant revoke publish unpublish merge rebase cherry clone fork checkout
    register unregister enroll notify dispatch broadcast attach detach unlink lock unlock close reopen click fill drag
    press toggle adjust increase decrease increment decrement change migrate mutate"""
)
"""Verbs that are hardly ever nouns in the name of a tool."""

_NOUN_WRITES: Final = _words(
    """add post book comment commit patch order set transfer return schedule reply email message tag label mark type
    store release switch turn place complete confirm make link pin star follow forward import sync trigger log record
    block mute"""
)
"""Verbs that are as often nouns: they count where something follows them and nothing in the name says "read"."""

_LAST_WORDS: Final = frozenset(("commit", "patch", "set"))
"""The ones that do at the end of a name too: ``git_commit``, ``kv_set``."""

_ASKED_TOO: Final = frozenset(("exchange", "change", "charge"))
"""The ones of _WRITES that come before a noun of a question: ``exchange_rate``."""

_READS: Final = _words(
    """get read list search find check calculate calc compute think open view lookup look fetch query show display
    describe count compare verify validate inspect analyze analyse extract summarize summarise retrieve load browse
    scan ask explain preview estimate predict classify detect monitor watch poll wait is has can should exists peek
    head tail cat grep ls glob plan reason reflect suggest recommend propose translate parse evaluate diff test select
    scroll dump stat ping resolve measure convert express hypothesize locate"""
)

_READ_NOUNS: Final = _words(
    """status state info information detail details history log logs rate rates summary report stats statistics lookup
    price prices availability results result content contents search finder reader viewer hours metadata schema notes
    number numbers integers floats two"""
)
"""Last words of names that tell of a question (``order_status``, ``exchange_rate``)."""

_SHELLS: Final = _words(
    "bash sh zsh shell terminal console powershell cmd command commands exec execute run ssh process sandbox"
)
_CODE_RUNNERS: Final = _words("python python2 python3 ipython jupyter repl code script notebook javascript js node")
_THINGS: Final = _words("editor tool manager client helper")
_CONTENT: Final = _words(
    "new_str old_str file_text insert_line content text body data value patch diff new_string edits"
)
"""Arguments that only a change needs."""

_ROUTERS: Final = ("command", "action", "operation", "op", "method", "mode", "subcommand", "verb")
_COMMANDS: Final = ("command", "cmd", "commands", "bash", "shell", "shell_command", "command_line", "keystrokes")
_ROUTES: Final = frozenset(_ROUTERS)
_CODES: Final = ("code", "script", "source", "python", "cell", "program", "input")
_QUERIES: Final = ("query", "sql", "statement", "stmt", "sql_query", "cypher")

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ONE_WORD: Final = re.compile(r"[A-Za-z][\w.-]*\Z")
_MAX_NAMES: Final = 4096
_names: dict[str, _Name] = {}
_routes: dict[str, _Name] = {}


def looks_like_write(tool: str, arguments: Mapping[str, Any]) -> bool:
    """True where the call looks as if it changed something. Pure, and never raises an :class:`Exception`.

    A tool that does several things is judged by the argument that says which (``command="view"``, ``method="POST"``);
    one that runs commands, code or SQL by the text; any other by the words of its name.

    Args:
        tool: Name of the tool, in any case and with any separators.
        arguments: By name. Of long texts the first 8,000 characters are looked at.
    """
    try:
        name = _names.get(tool) or _remember(_names, tool)
        if name is _Name.READ:
            return False
        for key in () if _ROUTES.isdisjoint(arguments) else _ROUTERS:
            route = arguments.get(key)
            if type(route) is str and len(route) <= 40 and _ONE_WORD.match(route):
                kind = _routes.get(route) or _remember(_routes, route)
                if kind is _Name.WRITE or kind is _Name.READ:
                    return kind is _Name.WRITE
        if name is _Name.ROUTER:
            return not _CONTENT.isdisjoint(arguments)
        return name is _Name.WRITE or _text_writes(name, arguments)
    except Exception:  # noqa: BLE001 - a Mapping of the user's, or a name that is no str
        return False


def _remember(table: dict[str, _Name], text: str) -> _Name:
    if len(table) >= _MAX_NAMES:
        table.clear()
    found = table[text] = _judge([word.lower() for word in _WORD.findall(text)])
    return found


def _judge(words: list[str]) -> _Name:
    """What the words of a name say: the first verb decides."""
    for at, word in enumerate(words):
        if word in _READS:
            # find_and_replace, get_or_create
            rest = itertools.pairwise(words[at + 1 :])
            joined = any(joint in ("and", "or") and then in _WRITES for joint, then in rest)
            return _Name.WRITE if joined else _Name.READ
        if word in _WRITES:
            if words[-1] in _READ_NOUNS and word in _ASKED_TOO:
                return _Name.READ
            return _Name.ROUTER if words[-1] in _THINGS else _Name.WRITE
        if word in _NOUN_WRITES and _is_verb(word, at, words):
            return _Name.WRITE
    return _noun(words)


def _noun(words: list[str]) -> _Name:
    """What the words of a name without a verb say."""
    if words and words[-1] in _READ_NOUNS:
        return _Name.READ
    if not _CODE_RUNNERS.isdisjoint(words):
        return _Name.CODE
    return _Name.OPEN if _SHELLS.isdisjoint(words) else _Name.SHELL


def _is_verb(word: str, at: int, words: list[str]) -> bool:
    """True where a word that may be a noun stands for an action."""
    if not _READS.isdisjoint(words) or (word != "set" and words[-1] in _READ_NOUNS):
        return False
    if word == "add":
        # A calculator's is a word alone.
        return at + 1 < len(words)
    return at + 1 < len(words) or len(words) == 1 or word in _LAST_WORDS


def _text_writes(name: _Name, arguments: Mapping[str, Any]) -> bool:
    """What the commands, code or SQL among the arguments say."""
    for key, judge in () if _JUDGED.isdisjoint(arguments) else _JUDGES.items():
        held = arguments.get(key)
        if held is not None:
            chosen = code_writes if name is _Name.CODE and judge is shell_writes else judge
            if chosen(held) if type(held) is str else any(map(chosen, _texts(held))):
                return True
    if (name is _Name.SHELL or name is _Name.CODE) and len(arguments) == 1:
        ((key, held),) = arguments.items()
        judge = shell_writes if name is _Name.SHELL else code_writes
        return key not in _JUDGES and any(map(judge, _texts(held)))
    return False


def _texts(held: Any) -> Iterator[str]:
    """A text, or a list of the words of one command, or of several commands."""
    if isinstance(held, str):
        yield held
    elif isinstance(held, list | tuple) and all(isinstance(item, str) for item in held):
        yield " ".join(held)
        yield "\n".join(held)


def _any_writes(text: str) -> bool:
    return code_writes(text) or sql_writes(text)


_JUDGES: Final = {
    **dict.fromkeys(_COMMANDS, shell_writes),
    **dict.fromkeys(_CODES, _any_writes),
    **dict.fromkeys(_QUERIES, sql_writes),
}
_JUDGED: Final = frozenset(_JUDGES)
