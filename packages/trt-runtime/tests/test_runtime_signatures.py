"""Signatures: files of ones own and of listed keys are trusted, those of others are data."""

from __future__ import annotations

import copy
import errno
import logging
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_files import ProgramFile
from side_by_side import in_threads

from trt_core import CacheError, InputError, PlanError
from trt_runtime import TRTModule, load, save, signatures
from trt_runtime.command_line import main
from trt_runtime.engine_file import plan_from_bytes, plan_to_bytes
from trt_runtime.plan_notes import is_host_code_allowed, is_own
from trt_runtime.program_file import SectionKind, read_sections

_KEY = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

MODEL = "model.trtp"


@pytest.fixture(autouse=True)
def _code_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every plan counts as one with compiled code, and each test has keys of its own."""
    monkeypatch.setattr("trt_runtime.program.loading._carries_code", lambda data, section: section.kind == 3)
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    monkeypatch.delenv("TRT_TRUSTED_KEYS", raising=False)


def _runs_code(path: Path, **options: Any) -> bool:
    (engine,) = (module for module in load(path, **options).modules() if isinstance(module, TRTModule))
    return is_host_code_allowed(engine.plan)


def _become_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "other") -> None:
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / name))


@pytest.fixture
def path(static_engine: TRTModule, tmp_path: Path) -> Path:
    """A program that this user has saved."""
    save(static_engine, tmp_path / MODEL)
    return tmp_path / MODEL


def test_a_file_of_ones_own_is_trusted(path: Path) -> None:
    assert _runs_code(path)
    assert signatures.verified_signer(path) == signatures.own_public_key()


def test_a_file_of_somebody_else_is_not_and_says_so_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = signatures.signer(path)
    _become_somebody_else(monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not _runs_code(path)
    (line,) = [record.getMessage() for record in caplog.records if "compiled kernels" in record.getMessage()]
    assert str(key) in line and "python -m trt_runtime trust" in line


@pytest.mark.parametrize("way", ["argument", "file", "environment", "list"])
def test_a_listed_key_is_trusted(way: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = str(signatures.signer(path))
    _become_somebody_else(monkeypatch, tmp_path)
    options: dict[str, Any] = {}
    if way == "argument":
        options["trusted_keys"] = [key]
    elif way == "file":
        (tmp_path / "keys.txt").write_text(f"# ours\n{key} a friend\n")
        options["trusted_keys"] = [tmp_path / "keys.txt"]
    elif way == "environment":
        monkeypatch.setenv("TRT_TRUSTED_KEYS", key)
    else:
        assert main(["trust", key, "--name", "a friend"]) == 0
    assert _runs_code(path, **options)
    if way == "list":
        assert main(["trust", key, "--remove"]) == 0
        assert not _runs_code(path)


def test_a_changed_file_is_not_trusted(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    parts = ProgramFile.read(content)
    (signature,) = (s for s in read_sections(memoryview(content)) if s.kind is SectionKind.SIGNATURE)
    parts.graph["torch_version"] = "2.0"
    parts.others.append((SectionKind.SIGNATURE, bytes(signature.of(memoryview(content)))))
    changed = parts.write(tmp_path / "changed.trtp")
    assert not _runs_code(changed)
    with pytest.raises(PlanError, match=r"is not what ed25519:.* has signed"):
        signatures.verified_signer(changed)


def test_who_has_no_home_saves_and_loads_without_a_key(
    path: Path, static_engine: TRTModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a number that the system does not know."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("TRT_KEY_DIR", "XDG_CONFIG_HOME", "LOCALAPPDATA", "APPDATA", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert signatures.own_public_key() is None and signatures.trusted_keys() == {}
    save(static_engine, tmp_path / "unsigned.trtp")
    assert not _runs_code(tmp_path / "unsigned.trtp") and not _runs_code(path)
    for command in (["sign", str(path)], ["trust", str(signatures.signer(path))]):
        assert main(command) == 2
    with pytest.raises(InputError, match="TRT_KEY_DIR"):
        save(static_engine, tmp_path / "signed.trtp", sign=True)


def test_a_list_stays_one_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names without an end, or many keys, made one that nobody read: what was trusted was so no longer."""
    keys = [signatures.PublicKey(bytes([number, 7] * 16)) for number in range(1, 6)]
    signatures.list_key(keys[0], "x" * 2_000_000)
    assert signatures.listed_keys() == {keys[0]: "x" * 200}
    monkeypatch.setattr(signatures, "_MOST_BYTES", 500)
    signatures.list_key(keys[1])
    signatures.list_key(keys[2])
    with pytest.raises(CacheError, match=r"cannot be changed(.|\n)*more than 500 bytes"):
        signatures.list_key(keys[3], "x" * 200)
    assert list(signatures.listed_keys()) == keys[:3]
    assert signatures.unlist_key(keys[0]) and list(signatures.listed_keys()) == keys[1:3]


def test_a_signature_of_another_file_is_not_trusted(path: Path, two_in_two_out: TRTModule, tmp_path: Path) -> None:
    save(two_in_two_out, tmp_path / "other.trtp", sign=False)
    content = path.read_bytes()
    (signature,) = (s for s in read_sections(memoryview(content)) if s.kind is SectionKind.SIGNATURE)
    parts = ProgramFile.read((tmp_path / "other.trtp").read_bytes())
    parts.others.append((SectionKind.SIGNATURE, bytes(signature.of(memoryview(content)))))
    assert not _runs_code(parts.write(tmp_path / "forged.trtp"))


@pytest.mark.parametrize("content", [b"x", b"\0" * 104, b"ED25519\n" + b"\0" * 95, b"ED25519\n" + b"\0" * 97])
def test_what_is_no_signature_is_refused(content: bytes, path: Path) -> None:
    parts = ProgramFile.read(path.read_bytes())
    parts.others.append((SectionKind.SIGNATURE, content))
    with pytest.raises(PlanError, match="signature of the saved program is malformed"):
        load(parts.write(path))


def test_a_malformed_signature_is_refused_where_nothing_asks_for_trust(
    two_in_two_out: TRTModule, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.trtp"
    save(two_in_two_out, plain, sign=False)
    parts = ProgramFile.read(plain.read_bytes())
    parts.others.append((SectionKind.SIGNATURE, b"\0" * 104))
    broken = parts.write(tmp_path / "broken.trtp")
    for options in ({}, {"trust": True}):
        with pytest.raises(PlanError, match="signature of the saved program is malformed"):
            load(broken, **options)


def test_a_signature_stands_last_and_alone(path: Path) -> None:
    parts = ProgramFile.read(path.read_bytes())
    parts.others += [(SectionKind.SIGNATURE, b"x"), (SectionKind.SIGNATURE, b"x")]
    with pytest.raises(PlanError, match="only its last section may be a signature"):
        load(parts.write(path))


def test_nobody_signs_for_a_stranger_without_saying_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither saving, copying nor pickling what a stranger wrote makes it trusted."""
    _become_somebody_else(monkeypatch, tmp_path)
    loaded = load(path)
    for made in (loaded, copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        save(made, tmp_path / "again.trtp")
        with pytest.raises(PlanError, match="not signed"):
            signatures.signer(tmp_path / "again.trtp")
        assert not _runs_code(tmp_path / "again.trtp")
    save(loaded, tmp_path / "again.trtp", sign=True)
    assert _runs_code(tmp_path / "again.trtp")


def test_a_plan_that_was_read_is_not_ones_own(static_engine: TRTModule) -> None:
    assert is_own(static_engine.plan)
    _, plan = plan_from_bytes(plan_to_bytes(static_engine.header, static_engine.plan))
    assert not is_own(plan)


def test_what_was_trusted_stays_so_when_it_is_saved_again(path: Path, tmp_path: Path) -> None:
    save(load(path), tmp_path / "again.trtp")
    assert _runs_code(tmp_path / "again.trtp")
    save(load(path), tmp_path / "again.trtp", sign=False)
    assert not _runs_code(tmp_path / "again.trtp")
    assert _runs_code(tmp_path / "again.trtp", trust=True)


def test_the_key_is_private_and_stays_the_same(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys" / "signing.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = signatures.own_public_key()
    assert before is not None and signatures.own_public_key() == before
    file.chmod(0o640)
    with pytest.raises(CacheError, match="not private"):
        signatures.signing_key()
    assert signatures.own_public_key() is None
    assert not _runs_code(path)


def test_a_private_key_looks_like_none_that_is_public(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys" / "signing.key"
    assert file.read_text().startswith("-----BEGIN PRIVATE KEY-----\n") and stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("way", ["file", "text"])
def test_a_private_key_among_those_that_are_trusted_is_told(
    way: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One was taken for a public key of somebody, and printed where those are listed."""
    file = tmp_path / "keys" / "signing.key"
    text = file.read_text()
    given = str(file) if way == "file" else text
    with pytest.raises(InputError, match="is a private key") as caught:
        load(path, trusted_keys=[given])
    assert text.splitlines()[1] not in str(caught.value) and "verify-signature" in str(caught.value)
    assert main(["trust", given]) == 2
    assert "is a private key" in capsys.readouterr().err
    monkeypatch.setenv("TRT_TRUSTED_KEYS", given)
    with pytest.raises(InputError, match="is a private key"):
        signatures.trusted_keys()


@pytest.mark.parametrize("kind", ["public", "other", "locked", "nonsense"])
def test_what_is_no_private_key_of_ours_signs_nothing(kind: str, path: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = _KEY.Ed25519PrivateKey.generate()
    pem, pkcs8 = forms.Encoding.PEM, forms.PrivateFormat.PKCS8
    contents = {
        "public": key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo),
        "other": X25519PrivateKey.generate().private_bytes(pem, pkcs8, forms.NoEncryption()),
        "locked": key.private_bytes(pem, pkcs8, forms.BestAvailableEncryption(b"word")),
        "nonsense": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    }
    file = tmp_path / "keys" / "signing.key"
    file.write_bytes(contents[kind])
    with pytest.raises(CacheError, match=r"(?s)cannot be read.*signing\.key.*move the file away"):
        signatures.signing_key()
    assert file.read_bytes() == contents[kind]
    assert signatures.own_public_key() is None and not _runs_code(path)


def test_a_pipe_in_the_place_of_the_key_is_refused_at_once(tmp_path: Path, static_engine: TRTModule) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "keys" / "signing.key", 0o600)
    save(static_engine, tmp_path / MODEL)
    with pytest.raises(PlanError, match="not signed"):
        signatures.signer(tmp_path / MODEL)
    with pytest.raises(InputError, match="cannot be signed"):
        save(static_engine, tmp_path / MODEL, sign=True)


def test_without_cryptography_files_are_data(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trt_runtime.signatures.can_sign", lambda: False)
    assert not _runs_code(path)
    with pytest.raises(InputError, match="which is not installed"):
        monkeypatch.setattr("trt_runtime.signatures.can_sign", lambda: False)
        signatures.verified_signer(path)


def test_the_command_line_signs_and_verifies(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = signatures.signer(path)
    assert main(["verify-signature", str(path)]) == 0
    assert f"signed with {first}, trusted: this user's own key" in capsys.readouterr().out
    _become_somebody_else(monkeypatch, tmp_path)
    assert main(["verify-signature", str(path)]) == 0
    assert "which is not trusted here" in capsys.readouterr().out
    assert main(["sign", str(path)]) == 0
    assert signatures.verified_signer(path) == signatures.own_public_key() != first
    assert _runs_code(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["verify-signature", str(path)]) == 2
    assert main(["trust", "ed25519:nonsense"]) == 2
    assert "is no public key" in capsys.readouterr().err


def test_large_sections_are_signed_in_pieces(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    for size in (1, 1000, 4096):
        monkeypatch.setattr(signatures, "_CHUNK_BYTES", size)
        save(load(path), path, sign=True)
        assert _runs_code(path)


@given(lengths=st.lists(st.integers(0, 40)), chunk=st.integers(1, 16))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_content_comes_what_is_signed_is_what_is_verified(lengths: list[int], chunk: int) -> None:
    parts = [bytes([at % 256]) * length for at, length in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_CHUNK_BYTES", chunk)
        signer = signatures.Signer(_KEY.Ed25519PrivateKey.generate())
        whole = b"".join(bytes(part) for part in signer.passing(1, parts))
        assert whole == b"".join(parts)
        assert signer._parts == [signatures._PART.pack(1, len(whole), signatures._digest(memoryview(whole)))]


@pytest.mark.parametrize("key", ["ed25519:AAAA", "nowhere", "/dev/null/x"])
def test_what_is_no_key_is_an_error(key: str, path: Path) -> None:
    with pytest.raises(InputError, match=r"no public key|neither a public key nor a file"):
        load(path, trusted_keys=[key])


def test_results_are_the_same_whoever_signed(path: Path, static_engine: TRTModule) -> None:
    x = torch.randn(2, 3)
    assert torch.equal(load(path)(x), static_engine(x))


def _keys(count: int) -> list[signatures.PublicKey]:
    return [signatures.PublicKey(bytes([number] * 32)) for number in range(1, count + 1)]


@pytest.mark.parametrize("damage", ["a line that is no key", "no text", "others write", "the disk fails"])
def test_a_list_of_keys_that_cannot_be_read_is_not_overwritten(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for an empty one: the keys in it were lost, and one that was to go was said not to be there."""
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    first, second = _keys(2)
    signatures.list_key(first, "a colleague")
    path = tmp_path / "keys" / "trusted.keys"
    content = path.read_bytes()
    if damage == "others write":
        path.chmod(0o622)
    elif damage == "the disk fails":

        def fail(descriptor: int, size: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "read", fail)
    else:
        path.write_bytes(content + (b"nonsense\n" if damage == "a line that is no key" else b"\xff\n"))
    before = path.stat().st_size
    for change in (lambda: signatures.list_key(second), lambda: signatures.unlist_key(first)):
        with pytest.raises(CacheError, match="list of trusted keys"):
            change()
    assert path.stat().st_size == before
    assert signatures.listed_keys() == {}


def test_keys_that_are_listed_at_once_are_all_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    keys = _keys(12)
    in_threads(signatures.list_key, keys)
    assert set(signatures.listed_keys()) == set(keys)
    in_threads(signatures.unlist_key, keys[:11])
    assert set(signatures.listed_keys()) == {keys[11]}


def _points_of_small_order() -> set[bytes]:
    """Keys whose multiple by 8 is the neutral point, by the arithmetic of RFC 8032, in all forms."""
    prime = 2**255 - 19
    d = -121665 * pow(121666, -1, prime) % prime

    def double(x: int, y: int) -> tuple[int, int]:
        product = d * x * x * y * y
        return (
            2 * x * y * pow(1 + product, -1, prime) % prime,
            (y * y + x * x) * pow(1 - product, -1, prime) % prime,
        )

    found = set()
    numbers = {0, 1, prime - 1, *(number for number in signatures._SMALL_ORDERS if number < prime)}
    for y in numbers:
        square = (y * y - 1) * pow(d * y * y + 1, -1, prime) % prime
        x = pow(square, (prime + 3) // 8, prime)
        x = x if x * x % prime == square else x * pow(2, (prime - 1) // 4, prime) % prime
        assert x * x % prime == square
        point = (x, y)
        for _ in range(3):
            point = double(*point)
        assert point == (0, 1), y
        for written in (y, y + prime):
            if written < 2**255:
                found |= {(written | sign << 255).to_bytes(32, "little") for sign in (0, 1)}
    return found


def test_keys_that_verify_what_anybody_makes_are_refused(path: Path) -> None:
    """With a key of small order, the neutral point and 0 are a signature of whatever there is."""
    weak = _points_of_small_order()
    assert len(weak) == 14  # 8 points, of which two have more forms than one
    data = path.read_bytes()
    sections = read_sections(memoryview(data))
    sealed = bytes(sections[-1].of(memoryview(data)))
    parts = ProgramFile.read(data)
    for key in weak:
        forged = sealed[: -(32 + 64)] + key + b"\1" + bytes(63)
        parts.others = [(SectionKind.SIGNATURE, forged)]
        path.write_bytes(parts.to_bytes())
        with pytest.raises(PlanError, match="is not what"):
            signatures.verified_signer(path)
        with pytest.raises(InputError, match="anybody"):
            signatures.PublicKey.parse(str(signatures.PublicKey(key)))
    own = signatures.PublicKey(_KEY.Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    assert signatures.PublicKey.parse(str(own)) == own and not own.is_of_small_order
