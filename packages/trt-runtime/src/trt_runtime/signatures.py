"""Signatures of saved programs: who wrote a file, and whose files this user trusts.

A program carries an Ed25519 signature over SHA-256 of all of its sections. Each user has a key of their own, made when
they save for the first time, and private to them. `load` trusts files that this key has signed, or one that the user
lists (`python -m trt_runtime trust`, `trusted_keys=`, `TRT_TRUSTED_KEYS`): it runs their compiled kernels, and all
operators that compute. Any other file is data, as if it had no signature.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trt_core.errors import CacheError, InputError, PlanError, TrtError
from trt_core.files.container import Content, Late, Section
from trt_core.files.folder import PrivateFolder, user_folder
from trt_core.files.opening import map_file, read_file
from trt_core.files.replacing import file_name, replacing
from trt_core.held_arguments import held_to_signature
from trt_runtime.program_file import PROGRAM, SectionKind, read_sections

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_SCHEME: Final = b"ED25519\n"
_SECTION: Final = struct.Struct(f"<8s{KEY_BYTES}s{SIGNATURE_BYTES}s")
_PART: Final = struct.Struct("<IQ32s")
_DOMAIN: Final = b"trt-runtime saved program, signature 1\n"
_PREFIX: Final = "ed25519:"
_PEM: Final = "-----BEGIN"
_PRIVATE: Final = "PRIVATE KEY-----"
_KEY_FILE: Final = "signing.key"
_TRUSTED_FILE: Final = "trusted.keys"
_MOST_BYTES: Final = 1 << 20
_MOST_NAME: Final = 200
_CHUNK_BYTES: Final = 16 << 20
_MOST_THREADS: Final = 8
_FOLDER_VARIABLE: Final = "TRT_KEY_DIR"
_TRUSTED_VARIABLE: Final = "TRT_TRUSTED_KEYS"
_LOCK_SECONDS: Final = 10.0
_PRIME: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDERS: Final = frozenset({0, 1, _PRIME - 1, _PRIME, _PRIME + 1, _ORDER_8, _PRIME - _ORDER_8})
"""Second coordinates of points of small order on the curve of Ed25519 (RFC 8032), as they may be written."""
INSTALL: Final = "install trt-runtime[signatures], which brings cryptography"


@dataclass(frozen=True)
class PublicKey:
    """Whoever has the other half of it has signed what it verifies.

    Attributes:
        data: Its 32 bytes.
    """

    data: bytes

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Reads `ed25519:` and 44 characters of base64.

        Raises:
            InputError: It is no key, or one of small order.
        """
        content = text.strip().removeprefix(_PREFIX)
        try:
            data = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if not text.strip().startswith(_PREFIX) or len(data) != KEY_BYTES:
            raise InputError(
                f"{text.strip()!r:.80} is no public key",
                hint=f"give one as `python -m trt_runtime verify-signature` prints it: {_PREFIX} and 44 characters",
            )
        key = cls(data)
        if key.is_of_small_order:
            raise InputError(f"{key} verifies what anybody makes", hint="ask whoever gave it to you for another one")
        return key

    @property
    def is_of_small_order(self) -> bool:
        """Whether what it verifies can be made by anybody: one of the points whose multiple by 8 is the neutral one."""
        number = int.from_bytes(self.data, "little") & ~(1 << 255)  # but for the sign of the other coordinate
        return number in _SMALL_ORDERS

    def __str__(self) -> str:
        return _PREFIX + base64.b64encode(self.data).decode()


# Keys of this user ------------------------------------------------------------------------------------------------


def key_folder() -> Path:
    """Where the keys of this user lie; `TRT_KEY_DIR` overrides it."""
    return user_folder("keys", _FOLDER_VARIABLE, is_cache=False)


def can_sign() -> bool:
    """Whether what signatures need is installed."""
    from importlib.util import find_spec

    return find_spec("cryptography") is not None


def own_public_key() -> PublicKey | None:
    """The public key of this user; None where they have none yet, or it cannot be read."""
    try:
        return PublicKey(_public(_private_key(_open_folder(make=False))))
    except (TrtError, OSError, ImportError):
        return None


def signing_key() -> Ed25519PrivateKey:
    """The key of this user, made where there is none yet.

    Raises:
        CacheError: It cannot be made or read, or others could.
        ImportError: `cryptography` is not installed.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder = _open_folder(make=True)
    try:
        with folder.locked(".lock", _LOCK_SECONDS):
            try:
                return _private_key(folder)
            except FileNotFoundError:
                key = Ed25519PrivateKey.generate()
                _write_private(folder, _KEY_FILE, _pem(key))
                return key
    except (OSError, TimeoutError) as error:
        raise CacheError("the key that signs cannot be made", where=folder.path, why=str(error)) from error


def _open_folder(*, make: bool) -> PrivateFolder:
    path = key_folder()
    if not make and not path.is_dir():
        raise FileNotFoundError(str(path))
    return PrivateFolder.open(path, "the folder of keys")


def _write_private(folder: PrivateFolder, name: str, text: str) -> None:
    with replacing(name, folder) as file:
        os.chmod(file.fileno(), 0o600)
        file.write(text.encode())


def _pem(key: Ed25519PrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization as forms

    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()).decode()


def _private_key(folder: PrivateFolder) -> Ed25519PrivateKey:
    """The key that signs.

    Raises:
        FileNotFoundError: There is none.
        CacheError: It cannot be read, or others could.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = folder.read(_KEY_FILE, _MOST_BYTES).decode("ascii", "replace").strip()
    if folder.status(_KEY_FILE).st_mode & 0o077 and sys.platform != "win32":
        raise CacheError("the key that signs is not private", where=folder.path, hint="chmod 600, or make another one")
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(text.encode(), None)
        if isinstance(key, Ed25519PrivateKey):
            return key
        why = "it is of another kind"
    except (ValueError, TypeError, ImportError) as error:  # ImportError: of kinds that are not supported
        why = str(error)
    raise CacheError(
        "the key that signs cannot be read",
        where=os.path.join(folder.path, _KEY_FILE),
        why=why,
        hint="bring the private key back that was there, or move the file away: the next signature makes another key",
    )


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


# Keys that are trusted --------------------------------------------------------------------------------------------


def trusted_keys(more: Iterable[str | os.PathLike[str]] = ()) -> dict[PublicKey, str]:
    """Whose files are trusted, and where that is said.

    Args:
        more: What the caller lists beside: keys, or files that hold one on each line.

    Raises:
        InputError: What the caller or the environment lists is no key.
    """
    found: dict[PublicKey, str] = {}
    own = own_public_key()
    if own is not None:
        found[own] = "this user's own key"
    for key, name in listed_keys().items():
        found.setdefault(key, f"{name or 'listed'} (python -m trt_runtime trust)")
    for key in read_keys(os.environ.get(_TRUSTED_VARIABLE, "").replace(",", " ").split()):
        found.setdefault(key, _TRUSTED_VARIABLE)
    for key in read_keys(more):
        found.setdefault(key, "trusted_keys")
    return found


def read_keys(texts: Iterable[str | os.PathLike[str]]) -> list[PublicKey]:
    """Returns the keys that texts are, or that the files hold which they name.

    Raises:
        InputError: One is neither, or a private key.
    """
    return [key for text in texts for key in _keys_of(os.fspath(text))]


def _keys_of(text: str) -> Iterator[PublicKey]:
    if text.startswith(_PREFIX):
        yield PublicKey.parse(text)
        return
    if text.startswith(_PEM):
        raise _is_private("what is listed")
    try:
        content = read_file(text, _MOST_BYTES).decode("ascii")
    except (OSError, PlanError, ValueError) as error:
        raise InputError(f"{text!r:.80} is neither a public key nor a file of such keys", why=str(error)) from error
    if _PRIVATE in content:
        raise _is_private(f"what {text!r:.80} holds")
    yield from _lines(content)


def _is_private(what: str) -> InputError:
    return InputError(
        f"{what} is a private key, with which files are signed",
        hint=f"give the public key, `{_PREFIX}` and 44 characters, as `python -m trt_runtime verify-signature FILE` "
        "prints it of a file that was signed. Whoever has seen the private one can sign like its owner",
    )


def key_named(text: str) -> PublicKey:
    """The key that a text is, or that signed the file which the text names; see `signer`.

    Raises:
        InputError: It is no public key.
        PlanError: Nobody signed the file, or it is none that can be signed.
    """
    if text.startswith((_PREFIX, _PEM)):
        (key,) = read_keys([text])
        return key
    start = b""
    with contextlib.suppress(OSError, PlanError, ValueError):
        start = read_file(text, _MOST_BYTES)
    if start.startswith(_PEM.encode()) and _PRIVATE.encode() in start:
        raise _is_private(f"what {text!r:.80} holds")
    return signer(text)


def _lines(content: str) -> dict[PublicKey, str]:
    keys = {}
    for line in content.splitlines():
        text, _, name = line.partition("#")[0].strip().partition(" ")
        if text:
            keys[PublicKey.parse(text)] = name.strip()
    return keys


def listed_keys() -> dict[PublicKey, str]:
    """The keys that this user has listed, and what they call them."""
    try:
        return _read_list(_open_folder(make=False))
    except (OSError, TrtError, UnicodeDecodeError):
        return {}


def _read_list(folder: PrivateFolder) -> dict[PublicKey, str]:
    return _lines(folder.read(_TRUSTED_FILE, _MOST_BYTES).decode("utf-8"))


def list_key(key: PublicKey, name: str = "") -> None:
    """Trusts what a key signs, from now on.

    Args:
        key: The key.
        name: What to call whoever has it; its first 200 characters are kept.

    Raises:
        CacheError: The list cannot be read or written; it is as it was.
    """
    with _changing_list() as keys:
        keys[key] = "".join(char for char in name if char.isprintable() and char != "#")[:_MOST_NAME]


def unlist_key(key: PublicKey) -> bool:
    """Trusts it no longer; returns whether it was listed.

    Raises:
        CacheError: The list cannot be read or written; it is as it was.
    """
    with _changing_list() as keys:
        return keys.pop(key, None) is not None


@contextlib.contextmanager
def _changing_list() -> Iterator[dict[PublicKey, str]]:
    """Yields the keys that are listed, and lists what is left of them in the end; nobody else changes them then."""
    folder = _open_folder(make=True)
    try:
        with folder.locked(".lock", _LOCK_SECONDS):
            try:
                keys = _read_list(folder)
            except FileNotFoundError:
                keys = {}
            before = dict(keys)
            yield keys
            if keys != before:
                text = "".join(f"{key} {name}".rstrip() + "\n" for key, name in keys.items())
                if len(text.encode()) > _MOST_BYTES:  # nobody would read it again, and no key would be trusted
                    raise InputError(f"it would have more than {_MOST_BYTES} bytes")
                _write_private(folder, _TRUSTED_FILE, text)
    except (OSError, TrtError, ValueError) as error:
        raise CacheError(
            "the list of trusted keys cannot be changed",
            where=os.path.join(folder.path, _TRUSTED_FILE),
            why=str(error) or "somebody else is changing it",
            hint="mend the file, or remove it and list the keys again",
        ) from error


# Signing and verifying --------------------------------------------------------------------------------------------


class Signer:
    """Signs a file while its sections are written, each named to `passing` in its turn.

    Args:
        key: The key that signs.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._parts: list[bytes] = []

    def passing(self, kind: int, content: Content) -> Content:
        """The content of the next section, of which note is taken as it comes."""
        self._parts.append(b"")
        place = len(self._parts) - 1
        if isinstance(content, Late):
            return Late(content.size, self._passing(place, kind, content.parts))
        return self._passing(place, kind, content)

    def _passing(self, place: int, kind: int, content: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
        chunks, open_chunk, size = hashlib.sha256(), hashlib.sha256(), 0
        for part in content:
            view = memoryview(part).cast("B")
            room = -size % _CHUNK_BYTES  # of the chunk that is open
            rest = view[room:]
            whole = rest.nbytes // _CHUNK_BYTES * _CHUNK_BYTES
            with _digesting(rest[:whole]) as digests:
                yield view  # is written while threads take its digest
                open_chunk.update(view[:room])
                if room and view.nbytes >= room:
                    chunks.update(open_chunk.digest())
                    open_chunk = hashlib.sha256()
                for digest in digests:
                    chunks.update(digest)
            open_chunk.update(rest[whole:])
            size += view.nbytes
        if size % _CHUNK_BYTES:
            chunks.update(open_chunk.digest())
        self._parts[place] = _PART.pack(kind, size, chunks.digest())

    def signature(self) -> Late:
        """The content of the section that holds the signature, once all others have passed."""
        return Late(_SECTION.size, self._signature())

    def _signature(self) -> Iterator[bytes]:
        yield _SECTION.pack(_SCHEME, _public(self._key), self._key.sign(_message(self._parts)))


def signer_of(content: memoryview) -> PublicKey:
    """Who says that they signed a file; whether they did says `verify`.

    Args:
        content: The section of the signature.

    Raises:
        PlanError: It is no signature.
    """
    if content.nbytes != _SECTION.size or bytes(content[: len(_SCHEME)]) != _SCHEME:
        raise PlanError("the signature of the saved program is malformed")
    return PublicKey(_SECTION.unpack(content)[1])


def verify(data: memoryview, sections: Sequence[Section], signature: Section) -> bool:
    """Whether a file is what its signer has signed.

    Args:
        data: The file.
        sections: All of its sections but the signature.
        signature: The section of the signature.

    Raises:
        PlanError: It holds no signature.
        ImportError: `cryptography` is not installed.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = signer_of(signature.of(data))
    if key.is_of_small_order:
        return False
    with contextlib.suppress(InvalidSignature, ValueError):
        parts = [_PART.pack(item.kind, item.size, _digest(item.of(data))) for item in sections]
        sealed = _SECTION.unpack(signature.of(data))[2]
        Ed25519PublicKey.from_public_bytes(key.data).verify(sealed, _message(parts))
        return True
    return False


def why_not_trusted(
    data: memoryview,
    sections: Sequence[Section],
    signature: Section | None,
    more: Iterable[str | os.PathLike[str]] = (),
) -> str:
    """Says why a file is not trusted; nothing where it is.

    Args:
        data: The file.
        sections: All of its sections but the signature.
        signature: The section of the signature; None where there is none.
        more: Keys that the caller trusts beside; see `trusted_keys`.

    Raises:
        InputError: What the caller lists is no key.
        PlanError: The signature is malformed.
    """
    if signature is None:
        return "it is not signed"
    key = signer_of(signature.of(data))
    if not can_sign():
        return f"it is signed, and that cannot be verified here: {INSTALL}"
    if key not in trusted_keys(more):
        return f"it is signed with {key}, which is not among the keys that you trust"
    return "" if verify(data, sections, signature) else f"it is not what {key} has signed"


def _message(parts: Sequence[bytes]) -> bytes:
    return _DOMAIN + struct.pack("<I", len(parts)) + b"".join(parts)


def _digest(content: memoryview) -> bytes:
    """SHA-256 of the SHA-256 of each chunk, so that threads share the work."""
    digest = hashlib.sha256()
    with _digesting(content) as digests:
        for part in digests:
            digest.update(part)
    return digest.digest()


@contextlib.contextmanager
def _digesting(content: memoryview) -> Iterator[Iterable[bytes]]:
    """The SHA-256 of each chunk of memory, which threads compute inside of the block."""
    chunks = [content[at : at + _CHUNK_BYTES] for at in range(0, content.nbytes, _CHUNK_BYTES)]
    if len(chunks) < 2:
        yield (hashlib.sha256(chunk).digest() for chunk in chunks)
        return
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        yield threads.map(lambda chunk: hashlib.sha256(chunk).digest(), chunks)


def signer(path: str | os.PathLike[str]) -> PublicKey:
    """Who says that they signed a program; `verified_signer` finds out whether they did.

    Raises:
        PlanError: It is no saved program, or has no signature.
        OSError: It cannot be read.
    """
    data, _, signature = _open(path)
    return signer_of(_required(signature, path).of(data))


def verified_signer(path: str | os.PathLike[str]) -> PublicKey:
    """Who has signed a program.

    Raises:
        InputError: Signatures cannot be verified here.
        PlanError: It is no saved program, has no signature, or was changed since.
        OSError: It cannot be read.
    """
    _require_cryptography()
    data, sections, signature = _open(path)
    found = _required(signature, path)
    if not verify(data, sections, found):
        raise PlanError(
            f"the program is not what {signer_of(found.of(data))} has signed",
            where=os.fspath(path),
            hint="copy the file again from where it was written, or ask whoever signed it",
        )
    return signer_of(found.of(data))


@held_to_signature
def sign(path: str | os.PathLike[str]) -> PublicKey:
    """Signs a program with this user's key, in the place of a signature that it has.

    Whoever trusts this user trusts what is in the file then, compiled code included.

    Raises:
        InputError: Programs cannot be signed here.
        PlanError: It is no saved program, or is damaged.
        CacheError: The key cannot be made or read.
        OSError: It cannot be read or written.
    """
    _require_cryptography()
    data, sections, _ = _open(path)
    for section in sections:
        PROGRAM.verify(data, section)
    key = signing_key()
    pen = Signer(key)
    parts = [(SectionKind(item.kind), pen.passing(item.kind, [item.of(data)])) for item in sections]
    with replacing(path) as file:
        PROGRAM.write(file, [*parts, (SectionKind.SIGNATURE, pen.signature())])
    return PublicKey(key.public_key().public_bytes_raw())


def _open(path: str | os.PathLike[str]) -> tuple[memoryview, list[Section], Section | None]:
    data = memoryview(map_file(file_name(path), "a saved program", "trt_runtime.save"))
    sections = read_sections(data)
    signature = next((item for item in sections if item.kind is SectionKind.SIGNATURE), None)
    return data, [item for item in sections if item is not signature], signature


def _required(signature: Section | None, path: str | os.PathLike[str]) -> Section:
    if signature is None:
        raise PlanError(
            "the program is not signed",
            where=os.fspath(path),
            hint="python -m trt_runtime sign signs it, if you trust what is in it",
        )
    return signature


def _require_cryptography() -> None:
    if not can_sign():
        raise InputError("signatures need cryptography, which is not installed", hint=INSTALL)
