"""Batch scripts that are right: the doctor says nothing of them, as a whole, and reads whatever bash takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainpkg.launch.doctor.script.reading import Script
from trainpkg.launch.doctor.script.rules import findings

ROOT = Path(__file__).parents[2]

TORCHRUN = r"""#!/bin/bash
#SBATCH --job-name=train          # as squeue shows it
#SBATCH --account=project
#SBATCH --partition=gpu
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0 --time=1-00:00:00 --exclusive
#SBATCH --output=logs/%x-%j.out
#SBATCH --signal=B:USR2@300 --requeue --open-mode=append
##SBATCH --constraint=old

set -euo pipefail
module purge
module load cuda/12.4 python/3.11
source "$HOME/venv/bin/activate"

export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
export NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=^lo,docker
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export HF_HOME=${SCRATCH:-/tmp}/hf
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
MASTER_ADDR=${nodes[0]}
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
echo "nodes: ${nodes[*]}, master $MASTER_ADDR:$MASTER_PORT, started $(date -Is)"

stop() {
    echo "the time limit is near"
    touch "stop-$SLURM_JOB_ID"
    wait "$step"
    scontrol requeue "$SLURM_JOB_ID"
}
trap stop USR2

LAUNCHER="torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE --rdzv-id=$SLURM_JOB_ID
    --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --max-restarts=0"
ARGS=(--config configs/large.yaml --data "$SCRATCH/data set" --lr 3e-4)

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --label $LAUNCHER train.py "${ARGS[@]}" &
step=$!
wait "$step"
status=$?
if [[ $status -ne 0 && ! -e "stop-$SLURM_JOB_ID" ]]; then
    echo "failed with $status" >&2
fi
exit "$status"
"""

ONE_TASK_PER_GPU = r"""#!/bin/bash -l
#SBATCH -J digits -N 2 --ntasks-per-node=4 --gres=gpu:4 -c 8
#SBATCH --mem-per-cpu=4G -t 04:00:00
#SBATCH --signal=USR2@120
set -eo pipefail
conda activate train
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$SLURM_NTASKS
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
case "$SLURM_JOB_PARTITION" in
    gpu | big) export NCCL_IB_HCA=mlx5_0,mlx5_1 ;;
    *) export NCCL_SOCKET_IFNAME=eth0 ;;
esac >&2
# data to every node first
srun --ntasks-per-node=1 --ntasks=2 cp data.tar "$TMPDIR/"
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
    exec python -u train.py --data "$TMPDIR/data.tar"
' 2>&1 | tee "log-$SLURM_JOB_ID"
"""

STATIC_AND_SWEEP = r"""#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --array=0-3%2
#SBATCH --ntasks-per-node=1 --exclusive
set -e
lrs=(1e-3 3e-3
     1e-2 3e-2)  # one per task
lr=${lrs[$SLURM_ARRAY_TASK_ID]}
head=$(scontrol show hostnames | head -n1)
port=$((20000 + SLURM_JOB_ID % 1000 * 10))
cat > "run-$SLURM_ARRAY_TASK_ID.sh" <<END
#!/bin/bash
#SBATCH --this-is=text
echo $lr \$SLURM_PROCID
END
for attempt in 1 2 3; do
    if srun -K1 --cpu-bind=none bash -c "torchrun --nnodes=2 --nproc-per-node=8 --node-rank=\$SLURM_NODEID \
            --master-addr=$head --master-port=$port train.py --lr $lr"; then
        break
    fi
    echo "attempt $attempt failed"
done
"""

MPI = r"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4
set -e
mpirun -np "$SLURM_NTASKS" --map-by ppr:4:node python -m mpi4py train.py
python summarise.py < /dev/null
"""

RAY = r"""#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --exclusive
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST"); nodes_array=($nodes)
head_node=${nodes_array[0]}
ip=$(getent ahostsv4 "$head_node" | awk 'NR==1 {print $1}')
srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --node-ip-address="$ip" --port=6379 --block &
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${nodes_array[$i]}" ray start --address "$ip:6379" --block &
    sleep 5
done
python -u tune.py
"""

ONE_NODE = r"""#!/bin/bash
#SBATCH --gpus=2 --cpus-per-task=16 --exclusive
set -euo pipefail
eval "$(conda shell.bash hook)"
conda activate env
torchrun --standalone --nproc-per-node=2 train.py
accelerate launch --num_processes 2 --main_process_port 0 evaluate.py
"""

GOOD = {"torchrun": TORCHRUN, "task per GPU": ONE_TASK_PER_GPU, "static": STATIC_AND_SWEEP, "mpi": MPI, "ray": RAY,
        "one node": ONE_NODE}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_script_gives_no_finding(name: str) -> None:
    script = Script(GOOD[name])
    assert not script.trouble
    assert findings(script) == []


@pytest.mark.parametrize("name", GOOD)
def test_the_good_scripts_are_scripts(name: str) -> None:
    assert shutil.which("bash")
    done = subprocess.run(["bash", "-n"], input=GOOD[name], text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def golden_lines() -> list[str]:
    """The sbatch lines that Snakemake's executor makes of our runs."""
    return [line.strip() for line in (ROOT / "tests/golden/sbatch.txt").read_text().splitlines() if " sbatch " in line]


@pytest.mark.parametrize("line", golden_lines())
def test_our_own_sbatch_lines_are_clean(line: str) -> None:
    options = line.partition("--parsable ")[2].partition(" --wrap=")[0]
    options = options.replace("<workdir>", "/work").replace("<name>", "n").replace("&", "+")
    script = f"#!/bin/sh\n#SBATCH {options}\npython -m snakemake --executor slurm-jobstep --jobs 1\n"
    assert findings(Script(script)) == []


def test_the_readmes_sbatch_example_is_clean() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if block.startswith("sbatch ")]
    options, _, wrapped = example.replace("\\\n", "").removeprefix("sbatch ").partition("--wrap")
    body = wrapped.strip().strip('"')
    assert findings(Script(f"#!/bin/sh\n#SBATCH {options.strip()}\n{body}\n")) == []


def test_the_script_of_our_ci_is_read() -> None:
    assert not Script((ROOT / ".ci/run").read_text()).trouble


WORDS = """
srun #SBATCH --nodes=2 ' " $ $( ) (( )) ${X } ` \\ <<EOF EOF if then fi in a) ;; esac do done { & | && <( = X= X=( [[ ]]
# torchrun --nnodes=2 $SLURM_NODELIST $SLURM_PROCID export --signal=B:USR1@9 $((1+ % é \ue000 \ue001
"""
PHRASES = ["\n", " ", "bash -c", "case x in", "for i in", "function f", "python train.py", "trap x USR1"]
PIECES = st.sampled_from([*WORDS.split(), *PHRASES])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=30), st.sampled_from(["", " "]))
def test_whatever_stands_in_a_script_the_reader_ends(pieces: list[str], between: str) -> None:
    text = "#!/bin/bash\n" + between.join(pieces)
    for _, found in findings(Script(text)):
        assert 1 <= found.line <= text.count("\n") + 1
        assert found.why
        assert found.fix
