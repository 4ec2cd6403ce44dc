"""The laws that a long run is held to, from its log alone."""

import json
from collections import Counter
from pathlib import Path
from statistics import fmean, quantiles

# A canary may take this many times longer beside a hostile neighbour.
SLOWER = 3

# The first part of a run is that in which caches and allocators fill. Docker remembers every exec for five to ten
# minutes after its end, so in a run of twenty its memory is level in the second half.
WARM_UP = 0.2
DOCKER_S_WARM_UP = 0.5

# Growth in KiB an hour that is ignored, and how many standard errors make a slope out of noise.
NEGLIGIBLE_PER_HOUR = 1024
CERTAIN = 3


def check(path, kind):
    """The violations in a run on an engine of a kind; the figures are printed."""
    events = [json.loads(line) for line in Path(path).read_text().splitlines()]
    of = {}
    for event in events:
        of.setdefault(event["what"], []).append(event)
    broken = list(ids(of)) + list(answers(of)) + list(canaries(of)) + list(machine(of))
    broken += slope(of, "memory", WARM_UP)
    broken += slope(of, "engine", DOCKER_S_WARM_UP if kind == "docker" else WARM_UP)
    broken += steady(of)
    if "ended" not in of:
        broken.append("the run did not come to its end")
    return broken


def ids(of):
    """Accepted is answered and cancelled, and each once."""
    asked = Counter(event["id"] for event in of["asked"])
    ended = Counter(event["id"] for event in of["answered"] + of.get("cancelled", []))
    print(f"{len(asked)} requests, {len(of.get('cancelled', []))} given up, {len(of.get('fault', []))} faults")
    if asked != ended or set(asked.values()) != {1}:
        yield f"lost or answered twice: {sorted((asked - ended) + (ended - asked))[:10]}"


def answers(of):
    wrong = [event for event in of["answered"] if event["wrong"]]
    for event in wrong[:10]:
        yield f"wrong at {event['at']:.0f} s, {event['kind']}: {event['wrong'][:2000]}"
    if len(wrong) > 10:
        yield f"and {len(wrong) - 10} more wrong answers"


def canaries(of):
    def p99(kind):
        times = [event["took"] for event in of["answered"] if event["kind"] == kind]
        return quantiles(times, n=100)[98] * 1000 if len(times) > 1 else None

    idle, beside, among = p99("idle canary"), p99("canary with a neighbour"), p99("canary")
    among = "-" if among is None else f"{among:.1f}"
    print(f"canaries, p99: {idle:.1f} ms idle, {beside:.1f} beside a hostile neighbour, {among} among all others")
    if beside > SLOWER * idle:
        yield f"a hostile neighbour makes a canary {beside / idle:.1f} times slower"


def machine(of):
    before, after = of["machine"][0], of["machine"][-1]
    for what in before.keys() - {"at", "what"}:
        if after[what] > before[what]:
            yield f"{what}: {before[what]} before, {after[what]} afterwards"


def slope(of, what, warm_up):
    """Whether memory grows with time, by the line of least squares through what is held when nothing runs."""
    samples = [(event["at"], event[what]) for event in of["breath"]]
    samples = samples[int(len(samples) * warm_up) :]
    if len(samples) < 4:
        return [f"too few breaths to tell whether {what} grows"]
    times, values = zip(*samples)
    mean_time, mean = fmean(times), fmean(values)
    spread = sum((time - mean_time) ** 2 for time in times)
    gradient = sum((time - mean_time) * (value - mean) for time, value in samples) / spread
    rest = sum((value - mean - gradient * (time - mean_time)) ** 2 for time, value in samples)
    error = (rest / (len(samples) - 2) / spread) ** 0.5
    hourly, uncertain = gradient * 3600, error * 3600
    print(f"{what}: {mean / 1024:.1f} MiB, {hourly / 1024:+.2f} MiB an hour, give or take {uncertain / 1024:.2f}")
    is_growing = hourly > NEGLIGIBLE_PER_HOUR and hourly > CERTAIN * uncertain
    return [f"{what} grows by {hourly / 1024:.1f} MiB an hour"] if is_growing else []


def steady(of):
    """Descriptors and threads at the end are what they were when the work had begun."""
    first, last = of["breath"][0], of["breath"][-1]
    for what, more in (("files", 8), ("threads", 8)):
        print(f"{what}: {first[what]} in the beginning, {last[what]} at the end")
        if last[what] > first[what] + more:
            yield f"{what}: {first[what]} in the beginning, {last[what]} at the end"
