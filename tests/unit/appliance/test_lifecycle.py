from __future__ import annotations

import signal

from webapp.appliance.lifecycle import LONGEST_DELAY_MS, SETTLED_AFTER_MS, Lifecycle, State, exit_text


def test_delays_double_up_to_the_longest() -> None:
    life = Lifecycle()
    delays = []
    for _ in range(8):
        life.spawned(1, now_ms=0)
        delays.append(life.exited(1, now_ms=10))
    assert delays == [200, 400, 800, 1600, 3200, 6400, LONGEST_DELAY_MS, LONGEST_DELAY_MS]
    assert life.restarts == 7
    assert life.state is State.BACKING_OFF


def test_a_long_life_starts_again_from_the_shortest_delay() -> None:
    life = Lifecycle()
    for _ in range(4):
        life.spawned(1, now_ms=0)
        life.exited(1, now_ms=10)
    life.spawned(1, now_ms=0)
    life.ready()
    assert life.exited(1, now_ms=SETTLED_AFTER_MS) == 200
    life.spawned(1, now_ms=0)
    assert life.exited(1, now_ms=SETTLED_AFTER_MS - 1) == 400


def test_the_first_start_is_no_restart() -> None:
    life = Lifecycle()
    life.spawned(7, now_ms=0)
    life.ready()
    assert (life.state, life.pid, life.restarts, life.last_exit) == (State.RUNNING, 7, 0, None)


def test_an_ordered_end_is_stopped_with_its_code() -> None:
    life = Lifecycle()
    life.spawned(7, now_ms=0)
    life.stopped(0)
    assert (life.state, life.pid, life.last_exit) == (State.STOPPED, None, 0)


def test_what_failed_stays_failed_when_all_is_stopped() -> None:
    life = Lifecycle()
    life.unstartable()
    life.stopped(None)
    assert life.state is State.FAILED


def test_how_a_process_ended_in_words() -> None:
    assert exit_text(3) == "ended with exit code 3"
    assert exit_text(-signal.SIGKILL) == "was killed by SIGKILL"
    assert exit_text(-250) == "was killed by signal 250"


def test_who_retired_stays_so_when_everything_stops() -> None:
    life = Lifecycle()
    life.spawned(7, now_ms=0)
    life.ready()
    life.retired(3)
    assert (life.state, life.pid, life.restarts, life.last_exit) == (State.RETIRED, None, 0, 3)
    life.stopped(None)
    assert life.state is State.RETIRED


def test_what_is_switched_off_and_on_again_begins_anew() -> None:
    life = Lifecycle()
    for _ in range(3):
        life.spawned(7, now_ms=0)
        life.exited(1, now_ms=1)
    life.held(None)
    assert (life.state, life.pid) == (State.HELD, None)
    life.spawned(8, now_ms=2)
    assert life.restarts == 2
    life.held(0)
    assert (life.state, life.pid, life.last_exit) == (State.HELD, None, 0)
    life.spawned(9, now_ms=3)
    assert life.exited(1, now_ms=4) == 200
    life.held(None)
    life.stopped(None)
    assert life.state is State.STOPPED
