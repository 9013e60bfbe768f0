from __future__ import annotations

from pathlib import Path

from webapp.appliance import log_files


def test_a_small_or_missing_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert not log_files.rotate(path)
    path.write_text("few words\n")
    assert not log_files.rotate(path)


def test_rotation_keeps_three_and_a_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with path.open("a") as writer:
        for round_number in range(5):
            writer.write(f"round {round_number} " + "x" * 100 + "\n")
            writer.flush()
            assert log_files.rotate(path, rotate_at_bytes=100)
        writer.write("after\n")
        writer.flush()
    assert path.read_text() == "after\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.log", "x.log.1", "x.log.2", "x.log.3"]
    assert [log_files.numbered(path, number).read_text()[:7] for number in (1, 2, 3)] == [
        "round 4",
        "round 3",
        "round 2",
    ]


def test_last_words(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert log_files.last_line(path) is None
    path.write_text("x" * 10_000 + "\nfirst\n  the reason: no such thing \n\n")
    assert log_files.last_line(path) == "the reason: no such thing"
    path.write_bytes(b"\xff\xfe" + b"y" * 10_000)
    assert len(log_files.last_line(path) or "") == 300


def test_the_last_words_are_of_the_present_life_and_without_their_time(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert log_files.size(path) == 0
    path.write_text("2026-01-31 12:00:00,000 CRITICAL brokerd: stopped: no disk\n")
    assert log_files.last_line(path) == "stopped: no disk"
    begin = log_files.size(path)
    assert log_files.last_line(path, begin) is None
    with path.open("a") as file:
        file.write("2026-01-31 12:00:00,000 INFO brokerd.store: 3 files\n\n")
    assert log_files.last_line(path, begin) == "3 files"
    path.write_text("begun anew\n")
    assert log_files.last_line(path, begin) == "begun anew"
