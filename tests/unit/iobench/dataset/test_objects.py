"""Data sets in an object store, against the requests received by moto's S3 server."""

import hashlib
from pathlib import Path

import pytest
from helpers.object_server import ObjectServer, range_bytes
from helpers.thread_world import on_ranks

from mlhpc.common.ranks.world import Solo
from mlhpc.errors import UserError
from mlhpc.iobench.dataset import objects
from mlhpc.iobench.dataset.content import Content
from mlhpc.iobench.dataset.generate import generate, require_data
from mlhpc.iobench.dataset.layout import Layout, root_of
from mlhpc.iobench.dataset.objects import ObjectStore
from mlhpc.iobench.definition.schema import Dataset, Storage
from mlhpc.iobench.formats.counting import ReadStatistics
from mlhpc.iobench.formats.formats import FORMATS

SMALL = Dataset(
    format="tfrecord", files=7, samples_per_file=3, sample_bytes=5000, sample_bytes_stdev=500, eval_files=2
)


@pytest.fixture(scope="module", autouse=True)
def credentials():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module")
def server():
    server = ObjectServer()
    yield server
    server.stop()


@pytest.fixture
def store(server, request):
    """An empty prefix in an existing bucket."""
    import fsspec

    filesystem = fsspec.filesystem("s3", endpoint_url=server.endpoint, skip_instance_cache=True)
    if not filesystem.exists("bucket"):
        filesystem.mkdir("bucket")
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return ObjectStore(f"s3://bucket/{name}", endpoint=server.endpoint, attempts=2)


def digests(root: Path | ObjectStore, dataset: Dataset) -> dict[str, str]:
    layout = Layout(root, dataset)
    names = [layout.name(split, n) for split in ("train", "validation") for n in range(layout.files(split))]
    return {name: hashlib.sha256(layout.place.read(name).data).hexdigest() for name in names}


@pytest.mark.parametrize("format", ["tfrecord", "npz", "hdf5", "parquet"])
def test_objects_are_the_files_of_a_folder(store, tmp_path, format):
    dataset = SMALL.model_copy(update={"format": format})
    assert generate(dataset, tmp_path, Solo(), 1) == generate(dataset, store, Solo(), 1)
    assert digests(tmp_path, dataset) == digests(store, dataset)
    require_data(dataset, store)


def test_ranks_share_the_work_and_a_restart_writes_what_is_missing(store, server):
    made = on_ranks(1, 3, lambda world: generate(SMALL, store, world, 1))
    assert [each.made for each in made] == [9, 9, 9]
    assert len(server.seen("PUT", f"{store.url.removeprefix('s3:/')}/train/")) == 7
    before = digests(store, SMALL)
    filesystem_of(store).rm_file(f"{store.url}/train/00003.tfrecord")
    with pytest.raises(UserError, match="train: 1 of 7 files are missing; generate it with"):
        require_data(SMALL, store)
    assert generate(SMALL, store, Solo(), 1).made == 1
    assert len(server.seen("PUT", f"{store.url.removeprefix('s3:/')}/train/")) == 8
    assert digests(store, SMALL) == before


def filesystem_of(store: ObjectStore):
    return objects._filesystem(store.protocol, store.endpoint, store.region, store.path_style, store.attempts)


@pytest.mark.parametrize("transfer", [0, 4096])
@pytest.mark.parametrize("format", ["tfrecord", "npz", "binary", "hdf5"])
def test_reads_are_the_get_requests_that_the_server_got(store, server, format, transfer):
    dataset = SMALL.model_copy(update={"format": format, "files": 2, "eval_files": 0})
    generate(dataset, store, Solo(), 1)
    layout, statistics = Layout(store, dataset), ReadStatistics()
    begin = len(server.requests)
    opened = layout.place.open(
        layout.name("train", 1), statistics, transfer=transfer, direct=False, streaming=True
    )
    sizes = layout.sizes("train", 1)
    reader = FORMATS[format].open_samples(opened, sizes, dataset)
    content = Content(dataset.seed)
    for number, size in enumerate(sizes.tolist()):
        assert bytes(reader.read(number)) == content.sample(1, number, size).tobytes()
    reader.close()
    got = server.requests[begin:]
    gets = [each for each in got if each.method == "GET"]
    assert len(gets) == statistics.calls
    assert sum(map(range_bytes, gets)) == statistics.bytes >= sizes.sum()
    assert len([each for each in got if each.method == "HEAD"]) == statistics.opens == 1
    assert len(got) == statistics.calls + statistics.opens
    if transfer:
        assert max(map(range_bytes, gets)) <= transfer


def test_a_prefix_of_another_workload_is_refused(store):
    generate(SMALL, store, Solo(), 1)
    other = SMALL.model_copy(update={"sample_bytes": 6000})
    with pytest.raises(UserError, match=r"different workload \(sample_bytes is 5000, not 6000"):
        require_data(other, store)
    with pytest.raises(UserError, match=r"different settings \(sample_bytes"):
        generate(other, store, Solo(), 1)


def test_a_foreign_prefix_is_left_alone(store):
    filesystem_of(store).pipe_file(f"{store.url}/thesis.tex", b"important")
    with pytest.raises(UserError, match="not a data set made by mlhpc io"):
        require_data(SMALL, store)
    with pytest.raises(UserError, match="not empty"):
        generate(SMALL, store, Solo(), 1)
    assert len(filesystem_of(store).find(store.url)) == 1


def test_prefixes_that_begin_alike_are_apart(store):
    beside = ObjectStore(f"{store.url}-more", store.endpoint)
    generate(SMALL, beside, Solo(), 1)
    assert generate(SMALL, store, Solo(), 1).made == 9


def test_what_is_not_there_is_a_line(store, server):
    with pytest.raises(
        UserError, match=r"s3://no-such-bucket/x.*: the bucket does not exist; create it first"
    ):
        generate(SMALL, ObjectStore("s3://no-such-bucket/x", server.endpoint), Solo(), 1)
    with pytest.raises(UserError, match=r"train/00000\.bin cannot be opened: it does not exist"):
        Layout(store, SMALL).place.open(
            "train/00000.bin", ReadStatistics(), transfer=0, direct=False, streaming=False
        )
    with pytest.raises(UserError, match=r"s3://: no bucket in this URL"):
        root_of("s3://", Storage(), 0)
    with pytest.raises(UserError, match=r"nowhere:// cannot be used: Protocol not known: nowhere"):
        require_data(SMALL, root_of("nowhere://bucket", Storage(), 0))
    with pytest.raises(UserError, match=r"storage\.endpoints and storage\.region apply only to s3://"):
        require_data(SMALL, root_of("memory://bucket", Storage(region="here"), 0))


def test_a_truncated_object_is_a_line(store):
    generate(SMALL, store, Solo(), 1)
    name = f"{store.url}/train/00001.tfrecord"
    filesystem_of(store).pipe_file(name, filesystem_of(store).cat_file(name)[:6000])
    layout = Layout(store, SMALL)
    opened = layout.place.open(
        "train/00001.tfrecord", ReadStatistics(), transfer=0, direct=False, streaming=False
    )
    reader = FORMATS["tfrecord"].open_samples(opened, layout.sizes("train", 1), SMALL)
    with pytest.raises(UserError, match=r"00001\.tfrecord is damaged: 6000 bytes instead of \d+"):
        for number in range(3):
            reader.read(number)


def test_a_server_that_goes_away_is_a_line():
    server = ObjectServer()
    store = ObjectStore("s3://gone/data", server.endpoint, attempts=2)
    filesystem_of(store).mkdir("gone")  # moto's servers in one process share their buckets
    generate(SMALL, store, Solo(), 1)
    opened = Layout(store, SMALL).place.open(
        "train/00000.tfrecord", ReadStatistics(), transfer=0, direct=False, streaming=False
    )
    server.stop()
    for work in (
        lambda: opened.read(0, 100),
        lambda: require_data(SMALL, store),
        lambda: generate(SMALL, store, Solo(), 1),
    ):
        with pytest.raises(UserError, match=r"s3://gone/data.*; check the server and the network") as caught:
            work()
        assert "\n" not in str(caught.value)


def test_each_rank_has_its_endpoint():
    storage = Storage(endpoints="http://a:1, http://b:2")
    roots = [root_of("s3://bucket/x/", storage, rank) for rank in range(3)]
    assert [root.endpoint for root in roots] == ["http://a:1", "http://b:2", "http://a:1"]
    assert {str(root) for root in roots} == {"s3://bucket/x"}
    assert root_of("file:///data/x", storage, 0) == Path("/data/x")
    assert root_of("data/x", storage, 0) == Path("data/x")


def test_another_store_of_fsspec_works_too():
    store = ObjectStore("memory://bucket/data")
    generate(SMALL, store, Solo(), 1)
    require_data(SMALL, store)
    assert generate(SMALL, store, Solo(), 1).made == 0


def test_the_recorded_endpoint_is_the_one_that_is_used(server, monkeypatch):
    assert ObjectStore("s3://bucket/x", server.endpoint).facts()["object_store"] == server.endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    assert ObjectStore("s3://bucket/x", attempts=7).facts()["object_store"] == server.endpoint
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert "amazonaws.com" in ObjectStore("s3://bucket/x", attempts=8).facts()["object_store"]
