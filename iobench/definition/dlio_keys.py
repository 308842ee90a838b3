"""The keys of DLIO's workload files: those that its ``LoadConfig`` reads (argonne-lcf/dlio_benchmark,
dlio_benchmark/utils/config.py, commit e1919d7 of 2026-06-17; defaults from ``ConfigArguments`` there), those
of release 2.0.0 that were renamed since, and those that only published files have."""

Keys = tuple[str, ...]

# Keys that this tool reads.
USED = {
    "model": {"name", "type", "model_size", "model_size_bytes", "num_layers", "model_datatype",
              "optimizer_datatype", "parallelism", "transformer", "optimization_groups", "layer_parameters"},
    "model.parallelism": {"tensor", "pipeline", "data", "zero_stage"},
    "model.transformer": {"vocab_size", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads"},
    "workflow": {"train", "generate_data", "evaluation", "checkpoint"},
    "dataset": {"format", "num_files_train", "num_files_eval", "num_samples_per_file", "record_length",
                "record_length_bytes", "record_length_stdev", "record_length_bytes_stdev", "enable_chunking",
                "chunk_size", "compression", "compression_level", "hdf5", "record_dims", "record_element_type",
                "file_prefix", "num_subfolders_train", "num_subfolders_eval", "record_length_resize",
                "record_length_bytes_resize"},
    "reader": {"data_loader", "read_threads", "batch_size", "batch_size_eval", "prefetch_size", "file_shuffle",
               "sample_shuffle", "read_type", "transfer_size", "odirect", "preprocess_time",
               "preprocess_time_stdev"},
    "train": {"epochs", "total_training_steps", "computation_time", "computation_time_stdev", "seed"},
    "evaluation": {"eval_time", "eval_time_stdev", "epochs_between_evals", "eval_after_epoch"},
    "checkpoint": {"epochs_between_checkpoints", "steps_between_checkpoints", "checkpoint_after_epoch", "type",
                   "fsync", "num_checkpoints_write", "num_checkpoints_read", "model_size", "num_layers",
                   "optimization_groups", "layer_parameters", "tensor_parallelism"},
    "output": {"metric"},
    "output.metric": {"exclude_start_steps", "exclude_end_steps"},
    "metric": {"au"},
    "storage": {"storage_type", "storage_root", "storage_options"},
    "storage.storage_options": {"endpoint_url", "region", "s3_force_path_style", "s3_max_attempts"},
}  # fmt: skip
# Keys of DLIO without effect here: folders are options of the command, frameworks and loaders are not
# used, and credentials never come from a workload.
NO_EFFECT = {
    "": {"framework", "logging"},
    "workflow": {"profiling", "debug"},
    "dataset": {"data_folder", "keep_files", "generation_buffer_size", "record_element_bytes"},
    "dataset.hdf5": {"chunk_dims", "num_dset_per_record", "max_shape"},
    "reader": {"data_loader_classname", "data_loader_sampler", "reader_classname",
               "multiprocessing_context", "dont_use_mmap", "computation_threads", "shuffle_size", "file_access",
               "pin_memory", "transformed_record_dims", "transformed_record_element_type"},
    "train": {"seed_change_epoch"},
    "evaluation": set(),
    "checkpoint": {"checkpoint_folder", "checkpoint_mechanism_classname", "pipeline_parallelism",
                   "time_between_checkpoints", "recovery_rank_shift", "rank_sync", "mode",
                   "randomize_tensor", "ksm"},
    "checkpoint.ksm": {"madv_mergeable_id", "high_ram_trigger", "low_ram_exit", "await_time"},
    "storage": {"storage_library"},
    "storage.storage_options": {"access_key_id", "secret_access_key", "storage_library", "prefetch_workers",
                                "prefetch_window"},
    "profiling": {"profiler", "iostat_devices"},
    "output": {"folder", "log_file"},
}  # fmt: skip
TABLES = {"model", "workflow", "dataset", "reader", "data_reader", "train", "evaluation", "checkpoint", "storage",
           "profiling", "output", "metric"}  # fmt: skip
FORMATS = {"tfrecord": "tfrecord", "hdf5": "hdf5", "hdf5_opt": "hdf5", "csv": "csv", "npz": "npz", "npy": "npy",
            "jpeg": "jpeg", "indexed_binary": "binary", "mmap_indexed_binary": "binary",
            "parquet": "parquet"}  # fmt: skip
OWN_LAYOUT = {"npz", "npy", "hdf5", "tfrecord", "csv", "jpeg", "indexed_binary"}
"""Formats whose files are those of release 2.0.0 here."""
# Types of values used in the conversion; all other values are validated by the workload.
NUMBERS = {"dataset.record_length_resize", "dataset.record_length_bytes_resize",
           "train.total_training_steps", "reader.prefetch_size", "reader.read_threads", "checkpoint.num_layers",
           "checkpoint.tensor_parallelism", "metric.au", "checkpoint.steps_between_checkpoints",
           "checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read",
           "output.metric.exclude_start_steps", "output.metric.exclude_end_steps", "model.num_layers",
           "model.transformer.vocab_size",
           "model.transformer.hidden_size", "model.transformer.ffn_hidden_size",
           "model.transformer.num_attention_heads", "model.transformer.num_kv_heads"}  # fmt: skip
WORDS = {
    "dataset.format",
    "model.model_datatype",
    "model.optimizer_datatype",
    "reader.file_shuffle",
    "reader.sample_shuffle",
}
DATATYPES = {"int8": 1, "uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}

# The origin of our keys, for the line in messages.
ORIGIN: dict[Keys, Keys] = {
    ("dataset", "files"): ("dataset", "num_files_train"),
    ("dataset", "eval_files"): ("dataset", "num_files_eval"),
    ("dataset", "samples_per_file"): ("dataset", "num_samples_per_file"),
    ("dataset", "sample_bytes"): ("dataset", "record_length_bytes"),
    ("dataset", "sample_bytes_stdev"): ("dataset", "record_length_bytes_stdev"),
    ("dataset", "chunk_bytes"): ("dataset", "chunk_size"),
    ("dataset", "subfolders"): ("dataset", "num_subfolders_train"),
    ("dataset", "eval_subfolders"): ("dataset", "num_subfolders_eval"),
    ("reader", "threads"): ("reader", "read_threads"),
    ("reader", "prefetch"): ("reader", "prefetch_size"),
    ("reader", "eval_batch_size"): ("reader", "batch_size_eval"),
    ("reader", "transfer_bytes"): ("reader", "transfer_size"),
    ("reader", "direct"): ("reader", "odirect"),
    ("reader", "preprocess"): ("reader", "preprocess_time"),
    ("train", "steps"): ("train", "total_training_steps"),
    ("train", "computation"): ("train", "computation_time"),
    ("evaluation", "computation"): ("evaluation", "eval_time"),
    ("metric", "au_percent"): ("metric", "au"),
    ("storage", "endpoints"): ("storage", "storage_options", "endpoint_url"),
    ("storage", "path_style"): ("storage", "storage_options", "s3_force_path_style"),
    ("storage", "attempts"): ("storage", "storage_options", "s3_max_attempts"),
}
