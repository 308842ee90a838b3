from mlhpc.cli import main

raise SystemExit(main())
