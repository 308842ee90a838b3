"""Simulated ranks, against queueing results that can be written down, and against the curves of Devarajan et
al. 2021."""

import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Workload
from mlhpc.iobench.simulate.measured import fit
from mlhpc.iobench.simulate.simulation import Service, System, simulate

SERVICE = Service(open_s=0.001, latency_s=0.004, device_s=0.002, decode_s=0.003)


def workload(compute=0.0, dataset=None, **reader):
    reader = {"threads": 1, "prefetch": 4, "batch_size": 1, **reader}
    files = {"format": "npz", "files": 100_000, "sample_bytes": 1000, **(dataset or {})}
    return Workload(name="w", dataset=files, reader=reader, train={"computation": compute})


def test_without_threads_a_step_is_the_sum_of_its_parts():
    run = simulate(workload(0.02, threads=0, batch_size=3), SERVICE, System(), 1, 10)
    assert run.seconds == pytest.approx(10 * (3 * (0.001 + 0.004 + 0.002 + 0.003) + 0.02))
    assert run.au_percent == pytest.approx(100 * 0.02 / (0.03 + 0.02))


@pytest.mark.parametrize("compute", [0.002, 0.05])
def test_a_reading_thread_hides_the_shorter_of_reading_and_computing(compute):
    steps = 1000
    run = simulate(workload(compute), SERVICE, System(), 1, steps)
    longer, shorter = max(0.01, compute), min(0.01, compute)
    assert run.seconds == pytest.approx(steps * longer + shorter)  # the first or the last is not hidden


@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize(("excluded", "percent"), [((1, 0), 100.0), ((0, 0), 100 / 1.001), ((5, 5), None)])
def test_utilisation_counts_the_steps_of_the_metric(barrier, excluded, percent):
    """A sample takes 10 ms, a step 1 s, so only the first of 10 steps waits: 10 s in 10.01 s, or 9 s in 9 s."""
    own = workload(1.0).model_dump(mode="json")
    own["train"]["barrier"] = barrier
    own["metric"] = dict(zip(("exclude_start_steps", "exclude_end_steps"), excluded, strict=True))
    run = simulate(Workload(**own), SERVICE, System(), 1, 10)
    assert run.au_percent == (None if percent is None else pytest.approx(percent))


def test_a_target_that_never_rests_limits_the_rate():
    run = simulate(workload(), SERVICE, System(cores=64, ranks_per_node=64, metadata=64), 64, 50)
    assert run.samples_per_s == pytest.approx(1 / 0.002, rel=0.02)
    assert run.binding == "storage" and run.busy["storage"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("ranks", [2, 3, 5, 9])
def test_the_rate_lies_within_the_bounds_of_asymptotic_analysis(ranks):
    """Denning and Buzen 1978: at most what the slowest server does, and what requests would do without queueing;
    at least what they do when every one waits for all others."""
    system = System(cores=2, ranks_per_node=ranks)
    run = simulate(workload(threads=0), SERVICE, system, ranks, 400)
    alone = 0.001 + 0.004 + 0.002 + 0.003
    bottleneck = max(0.001, 0.002, 0.003 / 2)
    assert run.samples_per_s <= min(1 / bottleneck, ranks / alone) * 1.0001
    assert run.samples_per_s >= ranks / (alone + (ranks - 1) * (0.001 + 0.002 + 0.003))


def test_many_files_scale_and_one_shared_file_is_bound_by_its_metadata():
    """Devarajan et al. 2021, Figs. 14 and 15, to 8192 ranks."""
    many = workload(0.01, dataset={"samples_per_file": 1000})
    shared = workload(0.01, {"files": 1, "samples_per_file": 100_000}, metadata_bytes=100)
    rates = {}
    for name, each in (("many", many), ("shared", shared)):
        for ranks in (512, 1024, 8192):
            system = System(targets=ranks, metadata=ranks, cores=2, ranks_per_node=2)
            rates[name, ranks] = simulate(each, SERVICE, system, ranks, 4)
    for ranks in (1024, 8192):
        linear = ranks / 512 * rates["many", 512].samples_per_s
        assert rates["many", ranks].samples_per_s == pytest.approx(linear, rel=0.01)
        assert rates["shared", ranks].samples_per_s == pytest.approx(1 / 0.001, rel=0.05)
        assert rates["shared", ranks].binding == "metadata"


def results_of(known, true, cores=2):
    for ranks in (1, 2):
        run = simulate(known, true, System(cores=cores, ranks_per_node=2), ranks, 50)
        samples = run.samples_per_s * run.seconds
        seconds = {"open_s": true.open_s * samples, "call_s": (true.latency_s + true.device_s) * samples,
                   "decode_s": true.decode_s * samples, "preprocess_s": 0.0}  # fmt: skip
        yield {
            "ranks": ranks, "workload": known.model_dump(mode="json", exclude_none=True),
            "samples_per_s": run.samples_per_s, "epochs": [{"steps": 50}],
            "rank_results": [{"cores": cores, "reading": {"samples": samples / ranks}}] * ranks,
            "reading": {"opens": samples, "io_s": seconds["call_s"] + seconds["open_s"], "thread_s": seconds},
        }  # fmt: skip


def test_service_times_are_found_again_from_one_and_two_ranks():
    known = workload(threads=1)
    fitted = fit(known, list(results_of(known, SERVICE)))
    assert fitted.error < 0.02
    for ranks in (4, 8):
        system = System(cores=2, ranks_per_node=ranks)
        rate = simulate(known, fitted.service, system, ranks, 50).samples_per_s
        assert rate == pytest.approx(simulate(known, SERVICE, system, ranks, 50).samples_per_s, rel=0.02)


def test_two_ranks_that_press_the_storage_tell_how_many_it_can_serve():
    """One thread with long steps does not show how two ranks compete; four that only read do."""
    known = workload(0.02)
    (calm, _), (_, press) = results_of(known, SERVICE), results_of(workload(threads=4), SERVICE)
    loose, tight = fit(known, list(results_of(known, SERVICE))), fit(known, [calm, press])
    assert not loose.told_apart and tight.told_apart
    assert tight.service.device_s == pytest.approx(SERVICE.device_s, rel=0.05)


def test_two_ranks_of_more_than_twice_the_rate_tell_nothing():
    known = workload(threads=1)
    one, two = results_of(known, SERVICE)
    assert not fit(known, [one, {**two, "samples_per_s": 2.07 * one["samples_per_s"]}]).told_apart


def test_runs_that_no_service_times_explain_are_called_that():
    """Two ranks half as fast as one: slower than if they took turns all the time."""
    known = workload(threads=1)
    one, two = results_of(known, SERVICE)
    fitted = fit(known, [one, {**two, "samples_per_s": one["samples_per_s"] / 2}])
    assert fitted.error > 0.5


def test_runs_that_say_nothing_are_refused():
    known = workload()
    one, two = results_of(known, SERVICE)
    for results, reason in (
        ([one, one], "one rank and on two"),
        ([one, {**two, "workload": {}}], "used a different workload"),
        (
            [one, {**two, "workload": two["workload"] | {"storage": {"url": "s3://bucket/x"}}}],
            "used a different workload",
        ),
        (
            [one, {**two, "data": "s3://bucket/x"}],
            "data is None on one rank and s3://bucket/x",
        ),
        ([one, {**two, "filesystem": "s3"}], "filesystem is None on one rank"),
        ([{**one, "object_store": "http://a"}, {**two, "object_store": "http://b"}], "object_store is"),
    ):
        with pytest.raises(UserError, match=reason):
            fit(known, results)


def test_no_run_makes_a_simulation_endless():
    """More threads than the four samples in the queue have nothing to do; a batch can exceed any memory."""
    known = workload()
    one, two = results_of(known, SERVICE)

    def stating(threads):
        reader = {**one["workload"]["reader"], "threads": threads}
        return {**one, "workload": {**one["workload"], "reader": reader}}

    assert fit(known, [stating(10**12), two]) == fit(known, [stating(4), two])
    large = workload(dataset={"files": 10**12}, batch_size=10**12)
    results = [{**each, "workload": large.model_dump(mode="json", exclude_none=True)} for each in (one, two)]
    with pytest.raises(UserError, match="1,000,000,000,000 samples is too large to simulate"):
        fit(large, results)
