"""Taking documents of the index apart, and putting them together, without losing what is unknown.

Members that we do not know stay the bytes that they came as. What cannot be understood raises
IndexDamagedError, in whatever way it is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from swampstore.formats import LARGEST_NUMBER, refuse_newer
from swampstore.index.errors import IndexDamagedError

_T = TypeVar("_T")
CommitSeq = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)]
WRITE = "write"
RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
encode = msgspec.json.Encoder().encode
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def refuse_newer_document(members: Mapping[str, msgspec.Raw], kind: str, what: str) -> None:
    """Raise NewerFormatError, before anything else is found to be wrong with a document."""
    refuse_newer(kind, decoded_if_sound(_anything, members.get("version")), what)


def members_of(data: bytes, what: str) -> dict[str, msgspec.Raw]:
    """Take a whole document apart. What is skipped is checked too, so it is safe to pass on."""
    # Strings inside raw members are the one thing that the decoder lets pass.
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise damaged(what, str(error)) from None
    return decoded(RAW_MEMBERS, data, what)


def decoded(decoder: msgspec.json.Decoder[_T], data: bytes, what: str) -> _T:
    """Return what a document, or a part of it, says."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(what, str(error)) from None


def decoded_if_sound(decoder: msgspec.json.Decoder[_T], data: bytes | None) -> _T | None:
    """Return what a part says, None if it is not there or cannot be understood."""
    try:
        return None if data is None else decoded(decoder, data, "")
    except IndexDamagedError:
        return None


def damaged(what: str, reason: str) -> IndexDamagedError:
    """Return the error that tells what is wrong with a document."""
    return IndexDamagedError(
        f"{what} cannot be understood: {reason}",
        hint="The data itself is untouched. Restore the index document, or remove it to have the "
        "index made anew from what is stored.",
    )


def without(members: Mapping[str, _T], names: frozenset[str]) -> dict[str, _T]:
    """Return the members that are not among these."""
    return {name: value for name, value in members.items() if name not in names}
