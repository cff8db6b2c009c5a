"""Metrics of a sandbox."""

import datetime

from support import PATIENCE, until


def test_figures_are_plausible(box):
    box.commands.run("head -c 30000000 /dev/zero > /tmp/fill; sync", timeout=PATIENCE)
    metrics = until("there are metrics", box.get_metrics, 90)
    last = metrics[-1]
    assert last.cpu_count == box.get_info().cpu_count
    assert 0 <= last.cpu_used_pct <= 100 * last.cpu_count + 5
    assert 0 < last.mem_used <= last.mem_total
    assert abs(last.mem_total / (1 << 20) - box.get_info().memory_mb) < 200
    assert 0 < last.disk_used <= last.disk_total
    now = datetime.datetime.now(datetime.timezone.utc)
    assert abs(now - last.timestamp) < datetime.timedelta(minutes=5)


def test_only_of_the_time_asked_for(box):
    until("there are metrics", box.get_metrics, 90)
    now = datetime.datetime.now(datetime.timezone.utc)
    hour = datetime.timedelta(hours=1)
    assert box.get_metrics(start=now - 2 * hour, end=now - hour) == []
    assert box.get_metrics(start=now - hour, end=now + hour)
