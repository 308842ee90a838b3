"""DLIO's published files, key by key (argonne-lcf/dlio_benchmark, configs/workload)."""

import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.definition import load

UNET3D = """\
model:
  name: unet3d
  type: cnn
  model_size: 499153191

framework: pytorch

workflow:
  generate_data: False
  train: True
  checkpoint: True

dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
  record_length_bytes_resize: 2097152

reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: seed

train:
  epochs: 5
  computation_time: 0.323

checkpoint:
  checkpoint_folder: checkpoints/unet3d
  checkpoint_after_epoch: 5
  epochs_between_checkpoints: 2

metric:
  au: 0.90
"""
LLAMA = """\
model:
  name: llama
  type: transformer
  num_layers: {layers}
  model_datatype: fp16
  optimizer_datatype: fp32
  parallelism: {{tensor: 8, pipeline: 4, zero_stage: 1}}
  transformer: {{vocab_size: 128256, hidden_size: {hidden}, ffn_hidden_size: {ffn}, num_attention_heads: {heads},
    num_kv_heads: 8}}
framework: pytorch
workflow: {{generate_data: False, train: False, checkpoint: True}}
checkpoint: {{checkpoint_folder: c, time_between_checkpoints: 5, num_checkpoints_write: 10,
  num_checkpoints_read: 10, fsync: True}}
"""


def read(tmp_path, text):
    path = tmp_path / "w.yaml"
    path.write_text(text)
    return load.load(str(path))


def test_unet3d_is_the_suites_own(tmp_path):
    workload, own = read(tmp_path, UNET3D), load.load("mlperf_unet3d")
    for part in ("dataset", "train", "metric"):
        assert getattr(workload, part) == getattr(own, part)
    assert workload.reader == own.reader
    assert workload.checkpoint.files == (499153191,)
    assert (workload.checkpoint.every_epochs, workload.checkpoint.every_steps) == (2, 0)
    assert workload.reader.handed_bytes == 2097152
    assert "framework" in workload.without_effect


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "heads", "gib"),
    # MLPerf Storage, Submission guidelines, Table 2: 8B, 70B and 405B with their checkpoint sizes.
    [(32, 4096, 14336, 32, 105), (80, 8192, 28672, 128, 912), (126, 16384, 53248, 128, 5290)],
)
def test_checkpoints_of_llama_have_the_printed_sizes(tmp_path, layers, hidden, ffn, heads, gib):
    workload = read(tmp_path, LLAMA.format(layers=layers, hidden=hidden, ffn=ffn, heads=heads))
    assert workload.dataset is None
    assert workload.checkpoint.total_bytes / 2**30 == pytest.approx(gib, rel=0.003)
    assert (workload.checkpoint.writes, workload.checkpoint.reads, workload.checkpoint.fsync) == (
        10,
        10,
        True,
    )
    assert workload.checkpoint.ranks == "all"


def test_times_may_be_distributions(tmp_path):
    text = UNET3D.replace("computation_time: 0.323", "computation_time: {type: gamma, shape: 4, scale: 0.1}")
    assert read(tmp_path, text).train.computation.expected == pytest.approx(0.4)
    text = UNET3D.replace("computation_time: 0.323", "computation_time: 0.3\n  computation_time_stdev: 0.1")
    assert read(tmp_path, text).train.computation.stdev == 0.1


S3 = """
storage:
  storage_type: s3
  storage_root: s3pytorchconnector
  storage_options:
    access_key_id: access-key
    secret_access_key: secret-key
    endpoint_url: http://localhost:9020,http://localhost:9021,http://localhost:9022
    region: us-east-1
    s3_force_path_style: False
    s3_max_attempts: 5
"""


def test_the_published_files_for_s3_load_without_their_credentials(tmp_path):
    """unet3d_a100_s3.yaml, unet3d_h100_s3.yaml and unet3d_v100_s3.yaml: this table, no checkpoint, and the URL
    of the bucket as the data folder."""
    plain = UNET3D.replace("checkpoint: True", "checkpoint: False")
    text = plain.replace("data_folder: data/unet3d/", "data_folder: s3://s3pytorchconnector") + S3
    workload = read(tmp_path, text)
    assert workload.storage.url == "s3://s3pytorchconnector"
    assert workload.storage.endpoints == tuple(f"http://localhost:{port}" for port in (9020, 9021, 9022))
    assert (workload.storage.region, workload.storage.path_style) == ("us-east-1", False)
    assert workload.storage.attempts == 5
    assert "storage.storage_options.secret_access_key" in workload.without_effect
    assert "dataset.data_folder" not in workload.without_effect
    assert "secret-key" not in load.dumps(workload)
    assert workload.dataset == read(tmp_path, plain).dataset
    below = read(tmp_path, plain + S3)
    assert below.storage.url == "s3://s3pytorchconnector/data/unet3d"


def test_a_model_may_be_only_a_name(tmp_path):
    """As in the files of DLIO's plugins."""
    text = UNET3D.replace(
        "model:\n  name: unet3d\n  type: cnn\n  model_size: 499153191\n", "model: plugin_default\n"
    )
    workload = read(tmp_path, text)
    assert workload.name == "plugin_default"
    # DLIO's defaults: what a run of 2.0.0 wrote, a model and a layer, less torch.save's framing.
    assert workload.checkpoint.files == (10240, 17371 + 24740228)
    assert workload.dataset == read(tmp_path, UNET3D).dataset


def test_keys_of_release_2_0_0_are_known(tmp_path):
    text = UNET3D.replace("record_length_bytes:", "record_length:").replace("_bytes_stdev", "_stdev")
    assert read(tmp_path, text).dataset == read(tmp_path, UNET3D).dataset


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format: npz", "format: png", r"w\.yaml:15: dataset\.format: 'png' is not emulated"),
        ("num_files_train: 168", "num_files_train: 0", r"w\.yaml:16: dataset\.files: .*got 0"),
        ("file_shuffle: seed", "file_shuffle: yes please", r"w\.yaml:26: reader\.file_shuffle"),
        ("au: 0.90", "au: 0.90\nstorage:\n  storage_type: daos", r"w\.yaml:41: storage\.storage_type: 'daos' "
         "is none of local_fs, parallel_fs, s3"),
        ("au: 0.90", "au: 0.90\nstorage:\n  storage_type: s3",
         r"w\.yaml:11: workflow\.checkpoint: to an object store"),
        ("epochs: 5", "epochs: [5", r"w\.yaml:\d+: invalid YAML"),
        ("epochs: 5", "epochs: " + "[" * 5000, r"w\.yaml: invalid YAML: nested too deeply"),
        ("epochs: 5", "epochs: 2001-02-30", r"w\.yaml: invalid YAML: day is out of range"),
        ("au: 0.90", "au: most of it", r"w\.yaml:39: metric\.au: 'most of it' is not a number"),
        ("file_shuffle: seed", "file_shuffle: [seed]",
         r"w\.yaml:26: reader\.file_shuffle: \['seed'\] is not a name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, UNET3D.replace(old, new))
    assert "\n" not in str(caught.value)


def test_keys_that_dlio_ignores_are_named_with_what_may_be_meant(tmp_path):
    text = UNET3D.replace("read_threads: 4", "read_thread: 4").replace("metric:", "metrics:")
    workload = read(tmp_path, text)
    assert workload.reader.threads == 1  # DLIO's default
    assert {name for name in workload.without_effect if "has no such key" in name} == {
        "reader.read_thread (DLIO has no such key; did you mean 'read_threads'?)",
        "metrics (DLIO has no such key; did you mean 'metric'?)",
    }


@pytest.mark.parametrize(
    "setting", ["++workload.reader.read_threads=8", "reader.read_threads=8", "++reader.read_threads=8"]
)
def test_overrides_of_dlio_are_settings(tmp_path, setting):
    path = tmp_path / "w.yaml"
    path.write_text(UNET3D)
    workload = load.load(str(path), [setting, "++workload.workflow.generate_data=True", "train.epochs=2"])
    assert (workload.reader.threads, workload.reader.prefetch) == (8, 8)  # a batch of each worker
    assert (workload.generate_data, workload.train.epochs) == (True, 2)


def test_overrides_of_dlio_are_refused_for_other_workloads():
    with pytest.raises(UserError, match="is a key of DLIO's YAML"):
        load.load("mlperf_unet3d", ["++workload.reader.read_threads=8"])


def test_records_may_be_arrays(tmp_path):
    """``record_dims`` of the releases after 2.0.0: the review of e1919d7 has 1 048 576 bytes for these."""
    text = UNET3D.replace(
        "record_length_bytes: 146600628", "record_dims: [512, 512]\n  record_element_type: float32"
    )
    text = "\n".join(line for line in text.splitlines() if "_stdev" not in line)
    assert read(tmp_path, text).dataset.sample_bytes == 1_048_576
    with pytest.raises(UserError, match=r"w\.yaml:\d+: dataset\.record_dims"):
        read(tmp_path, text.replace("[512, 512]", "[wide, 512]"))


def test_checkpoints_have_the_files_of_2_0_0(tmp_path):
    """megatron_deepspeed.yaml: a model, an optimizer (two values of each group, and all together), and layers."""
    text = UNET3D.replace(
        "checkpoint:\n",
        "checkpoint:\n  optimization_groups: [1009254400, 865075200, 793600]\n  num_layers: 44\n"
        "  layer_parameters: [129761280, 20971520]\n",
    )
    files = read(tmp_path, text).checkpoint.files
    assert len(files) == 46 and files[1] == 3 * (1009254400 + 865075200 + 793600)
    assert set(files[2:]) == {129761280 + 20971520}
