"""Where reports go, and what differs between two of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from trt_core import PartitionError
from trt_partition import PartitionReport, diff_reports, make_plan, make_report, save_report, write_report


@pytest.fixture(scope="module")
def report(branchy_graph: Any, refuse: Any, settings: Any) -> PartitionReport:
    return make_report(branchy_graph, make_plan(branchy_graph, refuse("relu.default"), settings()), settings())


def test_true_prints(report: PartitionReport, capsys: Any) -> None:
    write_report(report, True)
    assert capsys.readouterr().out == report.to_text()


def test_false_logs_at_debug_only(report: PartitionReport, capsys: Any, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, logger="torch_tensorrt"):
        write_report(report, False)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="torch_tensorrt"):
        write_report(report, False)
    assert caplog.messages == [report.to_text()]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "start"), [("r.txt", "+++"), ("r", "+++"), ("r.json", "{"), ("r.html", "<!DOCTYPE html>")]
)
def test_path_prints_and_saves_by_extension(
    report: PartitionReport, tmp_path: Path, capsys: Any, name: str, start: str
) -> None:
    write_report(report, str(tmp_path / name))
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert capsys.readouterr().out == report.to_text()
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_existing_file_is_kept_with_a_warning(report: PartitionReport, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("mine")
    with caplog.at_level(logging.WARNING, logger="torch_tensorrt"):
        assert not save_report(report, path)
    assert path.read_text() == "mine"
    assert "is kept" in caplog.text


def test_file_that_appears_meanwhile_is_kept(
    report: PartitionReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "raced.json"
    render = PartitionReport.to_json

    def slow(self: PartitionReport, indent: int | None = 2) -> str:
        path.write_text("theirs")
        return render(self, indent)

    monkeypatch.setattr(PartitionReport, "to_json", slow)
    assert not save_report(report, path)
    assert path.read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_that_is_missing_is_an_error(report: PartitionReport, tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="cannot be saved"):
        save_report(report, tmp_path / "missing" / "report.txt")


def test_a_folder_is_no_report(report: PartitionReport, tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="it is a directory"):
        save_report(report, tmp_path)


def test_equal_reports_do_not_differ(report: PartitionReport) -> None:
    diff = diff_reports(report, PartitionReport.from_json(report.to_json()))
    assert not diff
    assert diff.to_text() == "No differences.\n"


def test_differences_name_figures_settings_operators_and_nodes(
    report: PartitionReport, branchy_graph: Any, refuse: Any, settings: Any
) -> None:
    config = settings(min_block_size=2)
    other = make_report(branchy_graph, make_plan(branchy_graph, refuse("sigmoid.default"), config), config)
    diff = diff_reports(report, other)
    assert diff.settings == {"min_block_size": (1, 2)}
    assert diff.unsupported == {"torch.ops.aten.relu.default": (1, 0), "torch.ops.aten.sigmoid.default": (0, 1)}
    assert {(change.location, change.before, change.after) for change in diff.moved} == {
        ("relu", "TRT-F001", ""),
        ("sigmoid", "", "TRT-F001"),
    }
    assert "torch.ops.aten.relu.default at relu: PyTorch (TRT-F001) -> engine" in diff.to_text()
    assert diff.to_dict()["unsupported"]["torch.ops.aten.relu.default"] == [1, 0]
