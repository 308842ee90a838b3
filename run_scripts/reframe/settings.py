"""ReFrame's view of a site: a first version, with the scheduler to choose by --system=site:PARTITION."""

site_configuration = {
    "systems": [
        {
            "name": "site",
            "descr": "any machine",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "local",
                    "descr": "this machine, without a batch system",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["installed"],
                },
                {
                    "name": "slurm",
                    "descr": "Slurm; where it keeps accounts (sacct works), the scheduler 'slurm' is better",
                    "scheduler": "squeue",
                    "launcher": "srun",
                    "access": [],  # account, partition, constraint: ["-A project", "-p gpu"]
                    "environs": ["installed"],
                },
            ],
        },
    ],
    "environments": [
        # The environment in which ReFrame was started has mlhpc in PATH; or name modules here.
        {"name": "installed", "modules": [], "target_systems": ["site"]},
    ],
}
