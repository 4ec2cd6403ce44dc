"""The contents of the language images, and the advice about what they lack."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from dockerd import own_dockerd
from server import BINARY, environment

COMMANDS = """
import subprocess

def run(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.strip()

assert "python3 main.py" in run("ps ax")
assert run("file --brief --mime-type main.py").startswith("text/")
assert run("zip -q a.zip main.py && unzip -p a.zip | wc -c") == run("wc -c < main.py")
assert run("echo '[1, 2]' | jq -c .") == "[1,2]"
assert run("echo '2^70' | bc") == str(2**70)
assert run("sqlite3 a.db 'create table t(a); insert into t values(7); select a from t'") == "7"
run("printf 'all:\\\\n\\\\techo made | less\\\\n' > Makefile")
assert run("make -s") == "made"
"""

# In the working directory itself, which belongs to another user on Docker.
GIT = """
set -e
git init -q
echo one > file
git add .
git commit -qm first
git checkout -qb side
echo two > other
git add .
git commit -qm second
git checkout -q main
echo three > third
git add .
git commit -qm third
git checkout -q side
git rebase -q main
git checkout -q main
git merge -q --no-ff -m merge side
git gc -q
git fsck
git clone -q . /tmp/copy
cd /tmp/copy
git log --format='%an: %s'
test ! -e .git/hooks/pre-commit.sample
"""

LEARNING = """
import numpy, skimage.filters, xgboost
print(skimage.filters.gaussian(numpy.eye(3)).shape)
print(xgboost.XGBRegressor(n_estimators=2).fit(numpy.eye(4), numpy.arange(4)).predict(numpy.eye(4)).shape)
"""

# A missing glyph would be a warning.
PICTURE = """
import io, warnings
import matplotlib.pyplot as plt

warnings.simplefilter("error")
def draw(kind):
    plt.title("中文 日本語 한국어")
    plt.savefig(io.BytesIO(), format=kind)
for kind in ("png", "svg", "pdf"):
    draw(kind)
plt.style.use("seaborn-v0_8")
draw("png")
plt.rcParams["font.family"] = "serif"
draw("png")
"""

# Fonts that programs name, by themselves or with the folders of Debian, and how often one that is missing is reported.
FONTS = """
import matplotlib.pyplot as plt
from PIL import ImageFont

for name in ["DejaVuSans.ttf", "arial.ttf", "Arial", "timesbd.ttf", "simhei.ttf", "NotoSansCJK-Regular.ttc",
             "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf",
             "/usr/share/fonts/truetype/liberation/LiberationSans-Bold.ttf"]:
    print(*ImageFont.truetype(name, 20).getname())

for families in (["SimHei"], ["Microsoft YaHei", "Arial"], ["Noto Sans CJK JP", "no such family"]):
    plt.rcParams["font.sans-serif"] = families
    plt.rcParams["font.family"] = ["sans-serif", *families]
    for number in range(5):
        plt.text(0, number, "中文 abc")
    plt.savefig("chart.png")
"""

LOCALES = """
import locale
shown = []
for name in "de_DE en_GB en_US es_ES fr_FR it_IT ja_JP ko_KR nl_NL pt_BR ru_RU zh_CN".split():
    locale.setlocale(locale.LC_ALL, name + ".UTF-8")
    shown.append(locale.format_string("%.1f", 1234.5, grouping=True))
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
print(shown[0], shown[2], sorted("zäa", key=locale.strxfrm))
"""

TEMPORARY = {
    "python": "import tempfile; print(tempfile.NamedTemporaryFile(dir='/var/tmp').write(b'12'))",
    "javascript": "require('fs').writeFileSync('/var/tmp/a', '12'); console.log(2)",
    "go": 'package main\nimport ("fmt"; "os")\n'
    'func main() { f, e := os.Create("/var/tmp/a"); if e != nil { panic(e) }; fmt.Println(f.Write([]byte("12"))) }',
}


def python(program):
    return {"language": "python", "entrypoint_code": program}


def shell(command):
    return python(f"import subprocess; subprocess.run({command!r}, shell=True, check=True)")


async def stdout(server, **arguments):
    result = await server.call(timeout="60s", **arguments)
    assert not result.is_error, result.content[0].text
    return result.structured_content["stdout"]


@pytest.mark.any_engine
async def test_commands_that_programs_call_are_there(server):
    assert await stdout(server, **python(COMMANDS)) == ""


async def test_git_works_in_the_working_directory(server):
    assert "sandbox: merge" in await stdout(server, **shell(GIT))


@pytest.mark.any_engine
@pytest.mark.release
async def test_pictures_are_processed_and_models_are_trained(server):
    assert await stdout(server, **python(LEARNING), memory_mb=512) == "(3, 3)\n(4,)\n"


@pytest.mark.any_engine
@pytest.mark.release
async def test_chinese_japanese_and_korean_are_drawn_with_any_setting(server):
    assert await stdout(server, **python(PICTURE), memory_mb=512) == ""


@pytest.mark.any_engine
@pytest.mark.release
async def test_fonts_are_found_where_programs_look(server):
    result = await server.call(**python(FONTS), memory_mb=512, timeout="60s")
    data = result.structured_content
    assert data["stdout"].split("\n") == [
        *["DejaVu Sans Book"] * 3,
        "DejaVu Serif Bold",
        *["WenQuanYi Micro Hei Regular"] * 2,
        "DejaVu Sans Mono Book",
        "DejaVu Sans Bold",
        "",
    ]
    assert data["stderr"] == "findfont: Font family 'no such family' not found.\n"


@pytest.mark.any_engine
async def test_numbers_and_order_follow_a_locale(server):
    assert await stdout(server, **python(LOCALES)) == "1.234,5 1,234.5 ['a', 'ä', 'z']\n"


@pytest.mark.parametrize("language", TEMPORARY)
async def test_var_tmp_can_be_written(server, language):
    printed = await stdout(server, language=language, entrypoint_code=TEMPORARY[language])
    assert printed.startswith("2")


NO_MODULE = "is not in the image, and nothing can be installed"
NO_COMMAND = "the image has no command 'ffmpeg', "
GO_CALLS = (
    'package main\nimport "os/exec"\nfunc main() { if e := exec.Command("ffmpeg").Run(); e != nil { panic(e) } }'
)


@pytest.mark.any_engine
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (python("import tkinter"), "there is no display: draw with matplotlib"),
        (python("import turtle"), "there is no display: draw with matplotlib"),
        (python("import cv2"), f"the module 'cv2' {NO_MODULE} while the program runs: use skimage"),
        (python("import torch.nn"), f"the module 'torch' {NO_MODULE} while the program runs: use sklearn or xgboost"),
        (python("import plotly.express"), "use matplotlib or seaborn"),
        (python("import pandas; pandas.DataFrame({'a': [1]}).to_parquet('a')"), f"the module 'pyarrow' {NO_MODULE}"),
        (python("import locale; locale.setlocale(locale.LC_ALL, 'fi_FI.UTF-8')"), "the image has these locales: C, de_DE"),
        (shell("python3 -m ensurepip"), "nothing can be installed while the program runs: use what the image"),
        (shell("conda install torch"), "the image has no command 'conda', and nothing can be installed"),
        (shell("git clone https://example.org/a"), "the sandbox has no network"),
        (python("import subprocess; subprocess.run(['ffmpeg'])"), NO_COMMAND),
        (python("import subprocess; subprocess.run('ls -l')"), "with arguments must be a list, or one string"),
        (python("import subprocess; subprocess.run(['ls'], cwd='data')"), "or the folder in which it should run"),
        (shell("ffmpeg -i a.mp4"), NO_COMMAND),
        (shell("bash -c 'ffmpeg -i a.mp4'"), NO_COMMAND),
        (shell("env ffmpeg"), NO_COMMAND),
        (shell("printf 'all:\\n\\tffmpeg\\n' > Makefile; make"), NO_COMMAND),
        (
            python("import subprocess; subprocess.check_output('ffmpeg', shell=True, stderr=subprocess.PIPE)"),
            "exit status 127 means that the shell found no such command",
        ),
        ({"language": "javascript", "entrypoint_code": "require('child_process').spawn('ffmpeg')"}, NO_COMMAND),
        ({"language": "go", "entrypoint_code": GO_CALLS}, NO_COMMAND),
    ],
)
async def test_advice_says_what_is_missing_and_what_to_do_instead(server, arguments, advice):
    result = await server.call(**arguments)
    assert advice in result.structured_content["message"]


@pytest.mark.any_engine
@pytest.mark.parametrize("missing", ["open('data.csv')", "import subprocess; subprocess.run(['./program'])"])
async def test_a_missing_file_is_not_taken_for_a_command(server, missing):
    result = await server.call(**python(missing))
    assert result.structured_content["message"].startswith("exit code 1; there is no file or folder ")


# The script of an image is not run in it: it would take minutes.
SHELL = '#!/bin/dash\ncase $1 in /build/install.sh) ;; *) exec /bin/dash "$@" ;; esac\n'


def small_base(folder):
    """An archive of the smallest root in which an image can be built."""
    root = folder / "base"
    (root / "bin").mkdir(parents=True)
    for name in ("dash", "rm"):
        shutil.copy(shutil.which(name), root / "bin" / name)
        linked = subprocess.run(["ldd", root / "bin" / name], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    (root / "bin/sh").write_text(SHELL)
    (root / "bin/sh").chmod(0o755)
    subprocess.run(["tar", "-C", root, "-cf", folder / "base.tar", "."], check=True)
    return folder / "base.tar"


@pytest.mark.only_on("docker")
def test_docker_builds_an_image_again_only_if_something_has_changed(tmp_path):
    base = small_base(tmp_path)
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, own_dockerd(Path(folder), []) as daemon:

        def run(*command):
            done = subprocess.run(
                command, env=environment(tmp_path) | {"DOCKER_HOST": daemon.host}, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done
            return done.stdout

        def build(*options):
            return run(BINARY, "--engine", "docker", "image", "build", "python", *options)

        run("docker", "import", base, "isolator/base")
        def is_any_unused():
            return "(unused)" in run(BINARY, "--engine", "docker", "image", "ls")

        first = build()
        assert not is_any_unused()
        assert re.fullmatch(r"isolator/python sha256:\w{64}\n", first)
        assert build() == f"{first.strip()} (unchanged; --force builds it again)\n"
        run("docker", "import", "--message", "another", base, "isolator/base")
        assert "unchanged" not in build() and is_any_unused()
