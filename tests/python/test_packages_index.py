"""Sources of sets of packages: locks, wrong or hostile indexes, and hostile packages.

Sets are built by the command, because what it says is what a server says.
"""

import base64
import json
import os
import re
import shutil
import stat
import threading
import uuid
from pathlib import Path

import package_sets
import pytest
from package_index import Index, Packages
from package_sets import Store, node_set, packages, python_set
from registries import Link, wheel

pytestmark = pytest.mark.any_engine

# A set, its locked package with the version, an older one, and the file of the version. Then a set of another package, and its file.
LOCKED = {
    "python": (python_set("alpha==1.*"), ("alpha", "1.1", "1.0"), "alpha-1.1-py3-none-any.whl"),
    "javascript": (node_set("plain@1"), ("plain", "1.1.0", "1.0.0"), "plain-1.1.0.tgz"),
}
UNLOCKED = {
    "python": (python_set("odd-name-pkg"), "Odd_Name_pkg-1.0-py3-none-any.whl"),
    "javascript": (node_set("dual"), "dual-1.0.0.tgz"),
}
LOCKS = {"python": "requirements.txt", "javascript": "package-lock.json"}
PASSWORD = "s3cr3t-0f-the-1ndex"
LOGIN = f"reader:{PASSWORD}@"
# As it is, and as it goes to the index.
SECRETS = [PASSWORD, base64.b64encode(LOGIN.removesuffix("@").encode()).decode()]


class Built:
    """Sets that are built by commands from an index of the tests' own."""

    def __init__(self, folder, index, sets, login="", **settings):
        self.folder, self.index, self.sets, self.login, self.settings = folder, index, sets, login, settings
        self.store = Store(folder / "data")
        self.configure()

    def configure(self):
        address = {"python": self.index.python(self.login), "javascript": self.index.javascript(self.login)}
        self.config = package_sets.config(self.folder, self.sets, address, **self.settings)

    def run(self, *arguments):
        return package_sets.command(self.folder, self.config, self.store, "packages", *arguments)

    def succeeds(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def failures(self):
        """Builds all sets, none of which can be built. What is said of each, by its number."""
        done = self.run("build")
        assert done.returncode == 1 and self.store.sets() == [] and self.store.unfinished() == [], done
        told = refusals(done)
        assert sorted(told) == list(range(len(self.sets))), done.stderr
        return told

    def builds(self, *names):
        """Builds sets. Their packages with the versions, by the names of the sets."""
        return versions(self.succeeds("build", "--json", *names))

    def locks(self, *arguments):
        """Locks the set. Its packages with the versions."""
        return versions(self.succeeds("lock", "--json", *arguments))["set"]

    def keep(self, name, lock, text):
        """Puts a lock beside the configuration, as the lock of a set and with another text of its versions."""
        folder = self.folder / "isolator.lock" / name
        shutil.copytree(lock, folder)
        (folder / LOCKS[self.language]).write_text(text)


def refusals(done):
    """The message of a command for each numbered set that could not be built."""
    told = {}
    _, *parts = re.split(r"the set of packages set-(\d+) (?:could not|was not)", done.stderr)
    for number, text in zip(parts[::2], parts[1::2]):
        told[int(number)] = told.get(int(number), "") + text
    return told


def versions(rows):
    """The packages with their versions in what a command has listed, by the names of the sets."""
    return {row["name"]: {package["name"]: package["version"] for package in row["packages"]} for row in json.loads(rows)}


@pytest.fixture(scope="module", params=LOCKED)
def lock(request, tmp_path_factory):
    """A language, and the folder with the lock of its set."""
    folder = tmp_path_factory.mktemp("lock")
    with Index(packages()) as index:
        Built(folder, index, {"set": LOCKED[request.param][0]}).succeeds("lock")
    return request.param, folder / "isolator.lock/set"


@pytest.fixture
def locked(lock, tmp_path):
    """A set of either language that has a lock, with its packages and the lock."""
    language, folder = lock
    with Index(packages()) as index:
        built = Built(tmp_path, index, {"set": dict(LOCKED[language][0])})
        built.language, built.package, built.lock = language, LOCKED[language][1], folder
        built.keep("set", folder, (folder / LOCKS[language]).read_text())
        yield built


def publish_newer(built):
    if built.language == "python":
        built.index.packages.wheel("alpha", "1.2")
    else:
        built.index.packages.module("plain", "1.2.0")


def test_a_set_is_built_from_its_lock_and_is_the_same_elsewhere(locked, tmp_path):
    name, version, _ = locked.package
    files = {"python": ["requirements.in", "requirements.txt"], "javascript": ["package-lock.json", "package.json"]}[locked.language]
    assert sorted(path.name for path in locked.lock.iterdir()) == files
    publish_newer(locked)
    assert locked.builds()["set"][name] == version
    (first,) = locked.store.sets()
    locked.store = Store(tmp_path / "other")
    locked.succeeds("build")
    (second,) = locked.store.sets()
    assert first.name == second.name
    content = [{path.relative_to(folder): path.read_bytes() for path in (folder / "files").rglob("*") if path.is_file()}
               for folder in (first, second)]
    assert content[0] == content[1] != {}


def test_a_lock_is_renewed_only_where_it_has_to_be(locked):
    name, version, older = locked.package
    publish_newer(locked)
    lock = locked.folder / "isolator.lock/set"
    before = {path.name: path.read_bytes() for path in lock.iterdir()}
    assert locked.locks()[name] == version
    assert {path.name: path.read_bytes() for path in lock.iterdir()} == before
    assert locked.locks("--upgrade")[name].startswith("1.2")
    locked.sets["set"]["requirements"] = [older_of(locked)]
    locked.configure()
    assert locked.locks()[name] == older
    assert locked.builds()["set"][name] == older


def older_of(locked):
    """A requirement of the older version of the locked package."""
    name, _, older = locked.package
    return f"{name}=={older}" if locked.language == "python" else f"{name}@{older}"


def damaged(language, text):
    """Texts of changed locks."""
    yield text[: len(text) // 2]
    yield re.sub(r' \\\n +--hash=\S+|"integrity": "[^"]+",?', "", text)
    if language == "python":
        yield re.sub(r"alpha==1\.1", "alpha @ https://example.org/alpha-1.1-py3-none-any.whl", text)
        return
    modules = json.loads(text)
    modules["packages"]["node_modules/plain"]["resolved"] = "https://example.org/plain-1.1.0.tgz"
    yield json.dumps(modules)


def test_files_that_differ_from_the_lock_are_refused(locked):
    wanted, _, file = LOCKED[locked.language]
    unlocked, other = UNLOCKED[locked.language]
    text = (locked.lock / LOCKS[locked.language]).read_text()
    # Requirements, the text of their lock, and the message.
    cases = [
        # A file is another one than it was, or than the index itself says.
        (wanted, text, ["tampered", "hash|integrity", locked.package[0]]),
        (unlocked, None, ["hash|integrity"]),
        # The lock is of other requirements.
        (wanted | {"requirements": [older_of(locked)]}, text, ["isolator packages lock"]),
    ]
    cases += [(wanted, changed, ["isolator packages lock|isolator.lock"]) for changed in damaged(locked.language, text)]
    locked.index.tampered |= {file, other}
    locked.sets = named(wanted for wanted, _, _ in cases)
    locked.configure()
    for number, (_, text, _) in enumerate(cases):
        if text is not None:
            locked.keep(f"set-{number}", locked.lock, text)
    told = locked.failures()
    for number, (_, _, said) in enumerate(cases):
        assert all(re.search(part, told[number], re.IGNORECASE) for part in said), (number, told[number])


def test_a_withdrawn_version_is_built_from_a_lock_but_not_without_one(tmp_path):
    with Index(packages()) as index:
        built = Built(tmp_path, index, {"set": python_set("alpha==1.*"), "unlocked": python_set("alpha<2")})
        built.succeeds("lock", "set")
        index.yanked.add("alpha-1.1-py3-none-any.whl")
        found = built.builds()
        assert (found["set"]["alpha"], found["unlocked"]["alpha"]) == ("1.1", "1.0")


def test_an_index_without_hashes(tmp_path):
    """For Python they are made from the files, of npm there is no other way to know a file."""
    with Index(packages()) as index:
        index.without_hashes = True
        built = Built(tmp_path, index, {"set": python_set("alpha==1.*"), "modules": node_set("plain")})
        done = built.run("build")
        assert done.returncode == 1 and re.search("plain|part", done.stderr) and "no hash" in done.stderr, done
        assert "set of packages modules" in done.stderr and "alpha 1.1" in done.stdout, done
        text = (tmp_path / "isolator.lock/set/requirements.txt").read_text()
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) == 2, text


def test_a_folder_of_wheels_is_an_index(tmp_path):
    packages().write(tmp_path / "wheels")
    config = package_sets.config(tmp_path, {"set": python_set("alpha")}, {"python": "wheels"}, {"python"})
    done = package_sets.command(tmp_path, config, Store(tmp_path / "data"), "packages", "build", "--json")
    assert done.returncode == 0 and '"alpha"' in done.stdout, done


@pytest.fixture
def impatient(monkeypatch):
    """The tools don't try again for a while."""
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("npm_config_fetch_retries", "0")


# Dependency confusion.


@pytest.fixture
def public(tmp_path, monkeypatch):
    """An index that everybody can publish to, which the tools would ask beside the configured one by their own settings."""
    with Index(packages()) as public:
        for version in ("9.0", "9.0.0"):
            public.packages.wheel("alpha", version)
            public.packages.wheel("gamma", version)
        for name in ("plain", "@scope/part"):
            public.packages.module(name, "9.0.0")
        public.packages.wheel("only-public")
        public.packages.module("only-public")
        # The images are this user's.
        monkeypatch.setenv("XDG_DATA_HOME", os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share"))
        home = tmp_path / "home"
        (home / ".config/uv").mkdir(parents=True)
        (home / ".config/pip").mkdir(parents=True)
        address = public.python()
        uv = f'[[index]]\nurl = "{address}"\n[pip]\nextra-index-url = ["{address}"]\n'
        (home / ".config/uv/uv.toml").write_text(uv)
        (home / ".config/pip/pip.conf").write_text(f"[global]\nextra-index-url = {address}\n")
        (home / ".npmrc").write_text(f"registry={public.javascript()}\n@scope:registry={public.javascript()}\n")
        monkeypatch.setenv("HOME", str(home))
        for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("npm_config_registry", public.javascript())
        yield public


def test_only_the_configured_index_is_asked(tmp_path, public, impatient):
    with Index(packages()) as private:
        for file in [file for file in private.packages.files["alpha"] if "-2.0" in file]:
            del private.packages.files["alpha"][file]
        built = Built(tmp_path, private, {"python": python_set("alpha"), "javascript": node_set("plain")})
        built.sets |= {"no-python": python_set("only-public"), "no-javascript": node_set("only-public")}
        built.configure()
        done = built.run("build", "--json")
        assert done.returncode == 1, done
        found = versions(done.stdout)
        assert found["python"]["alpha"] == "1.1" and found["javascript"]["plain"] == "2.0.0" and len(found) == 2, found
        for name, path in [("no-python", "simple/only-public"), ("no-javascript", "npm/only-public")]:
            assert f"set of packages {name} was not locked" in done.stderr, done
            assert any(path in asked for asked in private.asked), private.asked
        # One that does not answer is not replaced by another either.
        private.fails = "."
        built.sets = named([python_set("gamma"), node_set("@scope/part")])
        built.configure()
        assert built.run("build").returncode == 1 and len(built.store.sets()) == 2
    assert public.asked == []


def test_without_an_index_the_tools_own_settings_hold(tmp_path, public):
    sets = {"text": python_set("only-public"), "tools": node_set("only-public")}
    config = package_sets.config(tmp_path, sets)
    done = package_sets.command(tmp_path, config, Store(tmp_path / "data"), "packages", "build")
    assert done.returncode == 0, done.stderr
    assert public.downloads("only_public-1") and public.downloads("only-public-1"), public.asked


# Credentials.


class Watch:
    """The command lines of all processes on this machine, as `ps` shows them, until the block ends."""

    def __enter__(self):
        self.seen = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _look(self):
        while not self._ended.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    pass


def files_with(secrets, folder):
    """Files below a folder in which one of these texts is, but for the configuration."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.name != "config.json"]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


LOOKS_FOR_IT = f"""
import os, pathlib
def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
places = [pathlib.Path("/proc", pid, name) for pid in os.listdir("/proc") if pid.isdigit() for name in ("environ", "cmdline")]
places += [path for path in pathlib.Path(os.environ["PYTHONUSERBASE"]).rglob("*") if path.is_file()]
print(len(places) > 5, [str(path) for path in places if any(secret.encode() in read(path) for secret in {SECRETS})])
"""


@pytest.mark.parametrize("is_right", [True, False], ids=["accepted", "refused"])
async def test_credentials_of_an_index_are_visible_nowhere(tmp_path, is_right):
    with Index(packages()) as index:
        index.password = ("reader", PASSWORD if is_right else "another")
        index.delay_s = 0.1
        sets = {"text": python_set("alpha"), "tools": node_set("plain")}
        built = Built(tmp_path, index, sets, LOGIN)
        shown = []
        with Watch() as watch:
            async with package_sets.serving(tmp_path, built.config, built.store) as server:
                state = "ready" if is_right else "failed"
                shown.append(str(await server.are(state)))
                shown.append(str(await server.are(state, language="javascript")))
                if is_right:
                    assert await server.prints(LOOKS_FOR_IT, "text") == "True []\n"
                else:
                    for name, language in [("text", "python"), ("tools", "javascript")]:
                        shown.append(str((await server.fails("1", name, language=language)).content))
                    assert "401" in shown[-1] or "credentials" in shown[-1] or "password" in shown[-1], shown
                shown.append(server.said())
        assert index.asked
        for arguments in (["build"], ["ls"], ["ls", "--json"]):
            done = built.run(*arguments)
            assert (done.returncode == 0) == (is_right or arguments[0] == "ls"), done
            shown.append(done.stdout + done.stderr)
        shown.append(package_sets.command(tmp_path, built.config, built.store, "config", "check", "--show").stdout)
        assert any("uv" in command and "compile" in command for command in watch.seen), "the tools were seen"
        told = "".join([*shown, *watch.seen])
        assert not any(secret in told for secret in SECRETS)
        assert files_with(SECRETS, tmp_path) == []


# Nothing of a package runs outside of a sandbox.


def marks(folder):
    """A file that is made by whatever runs on this machine, and code that makes it, in Python and for a shell."""
    mark = folder / f"mark-{uuid.uuid4().hex}"
    return mark, f"open({str(mark)!r}, 'w')", f"touch {mark}"


def test_nothing_of_a_python_package_runs_while_it_is_built(tmp_path):
    mark, python, _ = marks(tmp_path)
    found = Packages()
    build = {"setup.py": f"{python}\nimport setuptools\nsetuptools.setup()\n"}
    found.sdist("source", **build)
    own = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    found.sdist("backend", **{"pyproject.toml": own, "backend.py": f"{python}\n"})
    files = {"sets.py": python, "at_start.pth": f"import sys; {python}\n", "sitecustomize.py": python, "usercustomize.py": python}
    found.wheel("wheel", files=files | {"encodings/__init__.py": python, "zipfile.py": python})
    with Index(found) as index:
        names = ("source", "backend", "wheel")
        done = Built(tmp_path, index, named(python_set(name) for name in names)).run("build")
        assert done.returncode == 1 and done.stdout.startswith("set-2 "), done
        told = refusals(done)
        assert len(told) == 2, done
        for text, name in zip(told.values(), names):
            assert name in text and "no wheel" in text, text
    assert not mark.exists()


def test_nothing_of_a_node_package_runs_while_it_is_built(tmp_path):
    mark, _, shell = marks(tmp_path)
    found = Packages()
    names = ("preinstall", "install", "postinstall", "prepare", "prepublish", "preprepare", "dependencies")
    scripts = {name: shell for name in names}
    found.module("scripted", files={"index.js": ""}, scripts=scripts, dependencies={"built": "1"})
    gyp = {"binding.gyp": f"{{'targets': [{{'target_name': 'x', 'x': '<!({shell})'}}]}}", "index.js": ""}
    found.module("built", files=gyp, bin={"built": "index.js"})
    with Index(found) as index:
        found = Built(tmp_path, index, {"set": node_set("scripted")}).builds()
        assert found["set"] == {"scripted": "1.0.0", "built": "1.0.0"}
    assert not mark.exists()


ELSEWHERE = {
    "python": ["http://127.0.0.1:1/x-1.0-py3-none-any.whl", "git+https://127.0.0.1:1/x.git", "file:///tmp/x-1.0-py3-none-any.whl"],
    "javascript": [
        *("git+https://127.0.0.1:1/x.git", "http://127.0.0.1:1/x.tgz", "file:../../x", "npm:plain@1", "github:owner/x", "link:../x"),
    ],
}


def test_a_package_that_wants_another_from_elsewhere_is_refused(tmp_path):
    found, sets = packages(), []
    for number, address in enumerate(ELSEWHERE["python"]):
        found.wheel(f"outer-{number}", "1.0", f"Requires-Dist: x @ {address}")
        sets.append(python_set(f"outer-{number}"))
    for number, address in enumerate(ELSEWHERE["javascript"]):
        found.module(f"hidden-{number}", dependencies={"x": address})
        found.module(f"outer-{number}", dependencies={f"hidden-{number}": "1"})
        sets.append(node_set(f"outer-{number}"))
    with Index(found) as index:
        told = Built(tmp_path, index, named(sets)).failures()
        for number, text in told.items():
            assert re.search(r"\bx\b|not in the index", text), (sets[number], text)


def named(sets):
    return {f"set-{number}": wanted for number, wanted in enumerate(sets)}


# What can't be built is explained.


def unusable():
    found = packages()
    found.wheel("other-python", "1.0", "Requires-Python: >=3.99")
    found.wheel("older-tag", tag="cp27-cp27m-manylinux1_x86_64")
    found.wheel("other-platform", tag="cp313-cp313-macosx_11_0_arm64")
    found.sdist("only-source", **{"setup.py": ""})
    found.wheel("wants-one", "1.0", "Requires-Dist: alpha<2")
    found.wheel("wants-two", "1.0", "Requires-Dist: alpha>=2")
    found.wheel("upper-bound", "1.0", "Requires-Python: >=3.8,<3.9")
    found.wheel("wants-upper", "1.0", "Requires-Dist: upper-bound")
    found.add("other-name", "other_name-1.0-py3-none-any.whl", wheel("alpha", "1.0")[1])
    for name, content in {"cut": wheel("cut", "1.0")[1][:200], "page": b"<html>Sign in</html>"}.items():
        found.add(name, f"{name}-1.0-py3-none-any.whl", content)
        found.damaged_module(name, content)
    found.module("wants-missing", dependencies={"no-such-module": "1"})
    return found


EXPLAINED = [
    (python_set("no-such-package"), ["no-such-package"]),
    (python_set("alpha>=7"), ["alpha>=7"]),
    (python_set("other-python"), ["other-python", "python"]),
    (python_set("older-tag"), ["older-tag", "cp27|abi|python"]),
    (python_set("other-platform"), ["other-platform", "macos|platform"]),
    (python_set("only-source"), ["only-source", "source distribution|wheel"]),
    (python_set("wants-one", "wants-two"), ["wants-one", "wants-two", "alpha>=2", "conflict|unsatisfiable"]),
    (python_set("upper-bound"), [r"upper-bound 1\.0 is for Python >=3\.8", "the image has Python 3"]),
    (python_set("wants-upper"), ["upper-bound 1.0 is for Python"]),
    (python_set("cut"), ["the file of cut==1.0 is damaged"]),
    (python_set("page"), ["the file of page==1.0 is damaged"]),
    (python_set("other-name"), ["the file of other-name==1.0 is damaged", "alpha"]),
    (node_set("cut"), ["the file of cut-1.0.0 is damaged"]),
    (node_set("page"), ["the file of page-1.0.0 is damaged"]),
    (node_set("no-such-module"), ["no-such-module"]),
    (node_set("plain@7"), ["plain@7"]),
    (node_set("wants-missing"), ["no-such-module"]),
]


def test_failed_builds_are_explained(tmp_path):
    with Index(unusable()) as index:
        told = Built(tmp_path, index, named(wanted for wanted, _ in EXPLAINED)).failures()
    for number, (wanted, said) in enumerate(EXPLAINED):
        for part in said:
            assert re.search(part, told[number], re.IGNORECASE), (wanted, part, told[number])


def test_an_index_that_is_out_of_order(tmp_path, impatient):
    sets = [python_set("gamma"), node_set("dual"), python_set("hook"), node_set("@scope/part")]
    with Index(packages()) as index:
        index.fails, index.breaks = r"(gamma|dual).*\.(whl|tgz)$", r"(hook|part).*\.(whl|tgz)$"
        Built(tmp_path, index, named(sets)).failures()


def test_an_index_that_is_not_there(tmp_path, impatient):
    with Index(packages()) as index:
        built = Built(tmp_path, index, named(wanted for wanted, _, _ in LOCKED.values()))
    for text in built.failures().values():
        assert "127.0.0.1" in text and "can't be reached" in text, text


def test_a_tool_that_is_missing_is_named(tmp_path):
    missing = str(tmp_path / "none")
    with Index(packages()) as index:
        sets = named(wanted for wanted, _, _ in LOCKED.values())
        told = Built(tmp_path, index, sets, tools={"uv": missing, "npm": missing}).failures()
    for text, tool in zip(told.values(), ["uv", "npm"]):
        assert missing in text and f"packages.tools.{tool}" in text, text


# Hostile files.

OUTSIDE = "escaped.py"


def hostile_wheels():
    found = Packages()
    found.wheel("upwards", files={f"../../../../../../{OUTSIDE}": "", "x.py": ""})
    found.wheel("absolute", files={f"/tmp/{OUTSIDE}": "", "x.py": ""})
    found.wheel("data", files={"data-1.0.data/data/../../../../../" + OUTSIDE: "", "data-1.0.data/scripts/../../../" + OUTSIDE: ""})
    found.wheel("linked", files={"folder": Link("/tmp"), f"folder/{OUTSIDE}": "", "secret.py": Link("/etc/passwd")})
    found.wheel("lies", files={"lies.py": "x = 1"}, record="lies.py,sha256=AAAA,1\n/etc/hostname,,\n../../../../x,,\n")
    found.wheel("named", files={"x\ny.py": "", "x\x1b[2J.py": "", "a" * 255: "", "con.py": ""})
    found.wheel("points", files={"points.py": "", "{info}/entry_points.txt": f"[console_scripts]\n../../{OUTSIDE} = points:x\n"})
    return found


def hostile_modules():
    found = Packages()
    found.module("upwards", archived={f"package/../../../../{OUTSIDE}": ""})
    found.module("absolute", archived={f"/tmp/{OUTSIDE}": ""})
    links = {"package/folder": Link("/tmp"), f"package/folder/{OUTSIDE}": "", "package/secret": Link("/etc/passwd")}
    found.module("linked", archived=links)
    found.module("bin", bin={f"../../{OUTSIDE}": "index.js", "passwd": "../../../../etc/passwd"})
    found.module("names", dependencies={"../../x": "1"})
    return found


@pytest.mark.parametrize("language", LOCKED)
def test_no_file_of_a_package_leaves_its_set(tmp_path, language):
    """A set is built or refused. Whichever it is, nothing is outside of it, and nothing in it leads out."""
    found = hostile_wheels() if language == "python" else hostile_modules()
    wanted = python_set if language == "python" else node_set
    names = list(found.files) + list(found.documents)
    with Index(found) as index:
        built = Built(tmp_path, index, named(wanted(name) for name in names))
        done = built.run("build")
    assert done.returncode in (0, 1) and "\x1b" not in done.stdout + done.stderr, done
    assert not Path("/tmp", OUTSIDE).exists()
    for path in tmp_path.rglob(OUTSIDE):
        assert any(path.is_relative_to(folder) for folder in built.store.sets()), path
    for folder in built.store.sets():
        for path in folder.rglob("*"):
            mode = path.lstat().st_mode
            assert path.resolve().is_relative_to(folder.resolve()), path
            assert stat.S_ISLNK(mode) or mode & 0o7022 == 0 and mode & 0o444 == 0o444, (path, oct(mode))
    assert built.store.unfinished() == []
    # The others are no hindrance for those that are well.
    assert len(built.store.sets()) >= 1, done.stderr
