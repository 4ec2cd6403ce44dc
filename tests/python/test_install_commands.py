"""The commands pip, uv and npm of a sandbox, with a runner that the tests play: texts, streams, exit codes, and what they ask for."""

import json

import pytest
from install_commands import NODE, bound, fake_runner, install_node, install_python, npm, pip, refused

pytestmark = pytest.mark.any_engine


def lines(*expected):
    return "".join(f"{line}\n" for line in expected)


def test_pip_asks_for_what_is_missing_and_says_what_came(tmp_path):
    install_python(tmp_path, "there", "1.5", ["lower>=1"])
    install_python(tmp_path, "lower", "1.0")
    came = bound(("odd-name", "2.0"), ("fresh", "1.2"), ("lower", "1.0"), new=["fresh", "Odd_Name"])
    with fake_runner([{"progress": "resolving\x1b[2J"}, *came]) as runner:
        done = pip(tmp_path, "install", "there>=1", "fresh[x]>=1,<3", "Odd_Name", "--user", "-v")
    assert (done.code, done.err) == (0, "")
    site = tmp_path / "site"
    assert done.out == lines(
        f"Requirement already satisfied: there>=1 in {site} (1.5)",
        f"Requirement already satisfied: lower>=1 in {site} (from there) (1.0)",
        "Collecting fresh[x]>=1,<3",
        "Collecting odd-name",
        "  resolving\\x1b[2J",
        "Installing collected packages: fresh, odd-name",
        "Successfully installed fresh-1.2 odd-name-2.0",
    )
    asked = {"language": "python", "requirements": ["fresh[x]>=1,<3", "odd-name"], "upgrade": False}
    assert runner.requests == [asked]


def test_pip_asks_for_nothing_that_is_there(tmp_path):
    install_python(tmp_path, "there", "1.5", ["extra-part>=2; extra == 'more'", "gone; python_version < '3'"])
    with fake_runner(bound(("there", "1.5"), new=[]), bound(("there", "2.0"))) as runner:
        done = pip(tmp_path, "install", "There==1.*", "other; sys_platform == 'win32'")
        assert (done.code, done.err) == (0, "") and runner.requests == []
        assert done.out == lines(
            "Ignoring other: markers \"sys_platform == 'win32'\" don't match your environment",
            f"Requirement already satisfied: There==1.* in {tmp_path / 'site'} (1.5)".replace("There", "there"),
        )
        # The extra is not there. The runner knows better, and only then it is satisfied.
        done = pip(tmp_path, "install", "there[more]")
        assert runner.requests[-1]["requirements"] == ["there[more]"]
        assert f"Requirement already satisfied: there[more] in {tmp_path / 'site'} (1.5)\n" in done.out
        done = pip(tmp_path, "-q", "install", "-U", "there")
        assert (runner.requests[-1]["upgrade"], done.out, done.err, done.code) == (True, "", "", 0)


def test_pip_never_asks_for_itself(tmp_path):
    with fake_runner(bound(("wheel", "0.45"))) as runner:
        done = pip(tmp_path, "install", "--upgrade", "pip", "wheel", "uv", name="python3 -m pip")
        assert runner.requests == [{"language": "python", "requirements": ["wheel"], "upgrade": True}]
    assert done.out.startswith("Requirement already satisfied: pip in /.isolator/bin") and "Successfully installed wheel-0.45" in done.out
    done = pip(tmp_path, "install", "pip==24.0")
    assert (done.code, done.err) == (0, "WARNING: pip==24.0 comes with the sandbox: other versions can't be installed\n")
    assert pip(tmp_path, "pip", "install", "uv", name="uv").err.startswith("Audited 1 package in ")


def test_pip_reads_files_of_requirements(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/more.txt").write_text("\ufeffsecond # why\n-c limits.txt\n")
    (tmp_path / "inner/limits.txt").write_text("second<9\nunasked!=3\n")
    (tmp_path / "all.txt").write_text("# first\nfirst>=1 \\\n  ,<2\n-r inner/more.txt\n${NAMED}\nnever; python_version < '3'\n--only-binary :all:\n")
    came = ("first", "1"), ("second", "8"), ("third", "3")
    with fake_runner(bound(*came, ("unasked", "3")), bound(*came, ("unasked", "2"), new=["unasked"])) as runner:
        done = pip(tmp_path, "install", "-rall.txt", NAMED="third")
    assert done.code == 0 and "Successfully installed first-1 second-8 third-3 unasked-2" in done.out, done
    assert runner.requests[0]["requirements"] == ["first>=1,<2", "second<9", "third"]
    # What nothing asks for is limited once it has come along.
    assert runner.requests[1]["requirements"] == ["first>=1,<2", "second<9", "third", "unasked!=3"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("ok\n-e .\n", "-e installs a folder, and only packages"),
        ("--index-url https://x\n", "leave --index-url out (line 1 of wants.txt)"),
        ("a --hash=sha256:0\n", "leave --hash out (line 1 of wants.txt)"),
        ("a\n\n./folder\n", "./folder is a path"),
        ("-r wants.txt\n", "references itself"),
        ("-r gone.txt\n", "Could not open requirements file: [Errno 2] No such file or directory: 'gone.txt'"),
        ("a b\n", "Invalid requirement: 'a b'"),
        ("--odd\n", "no such option: --odd"),
    ],
)
def test_pip_says_which_line_of_a_file_can_not_be(tmp_path, content, said):
    (tmp_path / "wants.txt").write_text(content)
    done = pip(tmp_path, "install", "-r", "wants.txt")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("ERROR: ") and said in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("install -e .", 1, "programs import modules of the workspace"),
        ("install ./x", 1, "./x is a path"),
        ("install x.whl", 1, "x.whl is a path"),
        ("install https://x/y.whl", 1, "is an address, and a sandbox has no network"),
        ("install git+https://x/y", 1, "is the address of a repository"),
        ("install x@https://y", 1, "is an address"),
        ("install -i https://x y", 1, "the operator of this server chooses the index"),
        ("install --target=t y", 1, "leave --target out"),
        ("install --pre y", 1, "such as NAME==2.0rc1"),
        ("install --no-deps y", 1, "leave --no-deps out"),
        ("install --dry-run y", 1, "leave --dry-run out"),
        ("install", 1, "You must give at least one requirement to install"),
        ("install x y==", 1, "Invalid requirement: 'y=='"),
        (f"install x;{'(' * 3000}", 1, "Invalid requirement: 'x;(((("),
        ("install x;sys_platform~='1'", 1, "its marker can't be evaluated"),
        ("install --upgrade-strategy eager x", 1, "a requirement brings what it needs"),
        ("install --odd x", 2, "no such option: --odd"),
        ("install -r", 2, "--requirement option requires 1 argument"),
        ("uninstall -y there", 1, "there 1 stays: it is in "),
        ("uninstall -y gone", 0, "WARNING: Skipping gone as it is not installed."),
        ("download x", 1, "use pip install"),
        ("index versions x", 1, "pip install says whether a package is there"),
        ("list --outdated", 1, "pip install -U NAME gets the newest"),
        ("config set a b", 1, "the operator of the server chooses the index"),
        ("cache purge", 1, "no cache in the sandbox"),
        ("isntall x", 1, 'unknown command "isntall" - maybe you meant "install"'),
        ("show gone", 1, "WARNING: Package(s) not found: gone"),
    ],
)
def test_pip_refuses_in_a_line_what_can_not_be(tmp_path, arguments, code, said):
    install_python(tmp_path, "there", "1")
    done = pip(tmp_path, *arguments.split())
    assert (done.code, done.out) == (code, ""), done
    assert said in done.err and (code == 2 or done.err.count("\n") == 1)


def test_pip_passes_on_why_packages_do_not_come(tmp_path):
    answers = [
        refused("there is no version of x\nthat fits\x07", "no_match"),
        refused("x is not allowed", "not_allowed"),
        [b"{}\n"],
        [b'{"bound": {"pack'],
        [],
    ]
    with fake_runner(*answers):
        done = pip(tmp_path, "install", "-q", "x>=2")
        assert (done.code, done.out) == (1, "")
        assert done.err == lines("ERROR: there is no version of x", "that fits\\x07", "ERROR: No matching distribution found for x>=2")
        assert pip(tmp_path, "install", "x", "y").err == "ERROR: x is not allowed\n"
        assert "can't be read: {}" in pip(tmp_path, "install", "x").err
        for _ in range(2):
            assert "ended the request without an answer" in pip(tmp_path, "install", "x").err
    done = pip(tmp_path, "install", "x")
    assert done.code == 1 and "the runner of this sandbox gives no packages" in done.err
    big = pip(tmp_path, "install", *[f"package-{number}" for number in range(5000)])
    assert big.code == 1 and "at most 65536 can be asked for" in big.err


def test_variables_of_pip_hold(tmp_path):
    (tmp_path / "limits").write_text("x<2\n")
    with fake_runner(bound(("x", "1"))) as runner:
        done = pip(tmp_path, "install", "x", PIP_CONSTRAINT="limits", PIP_INDEX_URL="https://own", PIP_NO_CACHE_DIR="1", PIP_PRE="0")
    assert runner.requests[0]["requirements"] == ["x<2"]
    assert done.err == "WARNING: PIP_INDEX_URL has no effect: the operator of this server chooses the index\n"
    done = pip(tmp_path, "install", "x", PIP_TARGET="there")
    assert done.code == 1 and "(the variable PIP_TARGET)" in done.err


def test_pip_tells_what_is_there(tmp_path):
    install_python(tmp_path, "Upper", "1.0", ["lower-part<1"], Summary="Text", License="MIT", Author="A")
    install_python(tmp_path, "lower-part", "2.0")
    (tmp_path / "site/half-1.dist-info").mkdir()
    assert pip(tmp_path, "list").out == lines("Package    Version", "---------- -------", "lower-part 2.0", "Upper      1.0")
    assert json.loads(pip(tmp_path, "list", "--format=json").out) == [
        {"name": "lower-part", "version": "2.0"},
        {"name": "Upper", "version": "1.0"},
    ]
    assert pip(tmp_path, "list", "--not-required", "--format", "freeze").out == "Upper==1.0\n"
    assert pip(tmp_path, "freeze").out == "lower-part==2.0\nUpper==1.0\n"
    shown = pip(tmp_path, "show", "upper", "lower_part", "-f").out.splitlines()
    expected = ["Name: Upper", "Version: 1.0", "Summary: Text", "Home-page: ", "Author: A", "Author-email: ", "License: MIT"]
    expected += [f"Location: {tmp_path / 'site'}", "Requires: lower-part", "Required-by: ", "Files:", "  Upper/__init__.py", "---"]
    assert shown[:13] == expected and "Required-by: Upper" in shown
    done = pip(tmp_path, "check")
    assert (done.code, done.out) == (1, "Upper 1.0 has requirement lower-part<1, but you have lower-part 2.0.\n")
    for arguments, begin in [(["--version"], "pip of the sandbox from "), (["help"], "\nUsage:"), (["install", "--help"], "\nUsage:")]:
        done = pip(tmp_path, *arguments)
        assert (done.code, done.err) == (0, "") and done.out.startswith(begin)


def test_uv_says_on_standard_error_what_came(tmp_path):
    install_python(tmp_path, "there", "1.5")
    with fake_runner(bound(("fresh", "1.2"), ("there", "2.0")), refused("no version", "no_match")) as runner:
        done = pip(tmp_path, "pip", "install", "--system", "fresh", "there>=2", name="uv")
        assert (done.code, done.out) == (0, "") and runner.requests[0]["requirements"] == ["fresh", "there>=2"]
        said = done.err.splitlines()
        assert said[0].startswith("Resolved 2 packages in ") and said[1].startswith("Installed 2 packages in ")
        assert said[2:] == [" + fresh==1.2", " - there==1.5", " + there==2.0"]
        done = pip(tmp_path, "pip", "install", "fresh", name="uv")
        assert (done.code, done.err) == (1, "error: no version\n")
        assert pip(tmp_path, "pip", "install", "there", name="uv").err.startswith("Audited 1 package in ")
    assert pip(tmp_path, "pip", "freeze", name="uv").out == "there==1.5\n"
    for arguments, said in [("add x", "use uv pip install NAME"), ("pip sync x", "use uv pip install -r FILE"), ("tool run x", "use uv pip install NAME"), ("run x", "use python3"), ("odd", "unrecognized")]:
        done = pip(tmp_path, *arguments.split(), name="uv")
        assert done.code == 2 and done.err.startswith("error: ") and said in done.err
    done = pip(tmp_path, "ruff", "check", name="uvx")
    assert done.code == 2 and "use uv pip install NAME, then the command of the package is in the path" in done.err


def test_npm_asks_for_what_is_missing_and_writes_it_down(tmp_path):
    install_node(tmp_path, "there", "1.5.0")

    def comes(request):
        if request["requirements"] != ["there@^2"]:
            install_node(tmp_path, "fresh", "2.3.1")
            install_node(tmp_path, "@scope/name", "0.4.0")

    with fake_runner(bound(("fresh", "2.3.1"), ("@scope/name", "0.4.0"), ("deep", "1.0.0"))) as runner:
        runner.before = comes
        done = npm(tmp_path, "i", "fresh@2", "@scope/name@~0.4", "there", "--no-audit", "--silent=false")
    assert (done.code, done.err) == (0, "") and done.out.startswith("\nadded 3 packages in "), done
    asked = {"language": "javascript", "requirements": ["@scope/name@~0.4", "fresh@2"], "upgrade": False}
    assert runner.requests == [asked]
    written = json.loads((tmp_path / "package.json").read_text())
    assert written == {"dependencies": {"@scope/name": "~0.4", "fresh": "^2.3.1", "there": "^1.5.0"}}
    # Now everything is there, and a dependency that has gone is asked for again.
    assert npm(tmp_path, "install", "fresh").out.startswith("\nup to date in ")
    (tmp_path / "package.json").write_text('{"dependencies": {"gone": "1"}, "devDependencies": {"tool": "2"}}')
    with fake_runner(bound(("gone", "1.0.0")), bound(("gone", "1.1.0"))) as runner:
        done = npm(tmp_path, "install", "--omit=dev")
        assert runner.requests[-1]["requirements"] == ["gone@1"]
        assert done.code == 1 and "programs of" in done.err, "a package that can't be found is no success"
        npm(tmp_path, "update")
        assert runner.requests[-1] == {"language": "javascript", "requirements": ["gone@1", "tool@2"], "upgrade": True}


def test_npm_links_packages_into_a_project_elsewhere(tmp_path):
    project, store = tmp_path / "project", tmp_path / "set"
    project.mkdir()
    (project / "package.json").write_text("{}")
    install_node(store, "fresh", "2.3.1")
    with fake_runner(bound(("fresh", "2.3.1"))):
        # The home is the workspace of some sandboxes.
        done = npm(project, "install", "fresh", "--no-save", HOME=str(store))
    assert done.code == 0 and (project / "node_modules/fresh").is_symlink(), done
    assert (project / "package.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("i -g x", 1, "run commands of packages with npx NAME"),
        ("i ./x", 1, "./x is a path"),
        ("i owner/x", 1, "is the address of a repository"),
        ("i x@npm:y", 1, "gives a package another name"),
        ("i https://x/y.tgz", 1, "is an address"),
        ("i --registry=http://x y", 1, "the operator of this server chooses the registry"),
        ("i --force y", 1, "leave it out"),
        ("i --odd y", 1, 'Unknown option: "--odd"'),
        ("ci", 1, "use npm install"),
        ("view x", 1, "npm install says whether a package is there"),
        ("uninstall x", 1, "stay"),
        ("init", 1, "npm init -y"),
        ("run x", 254, "Could not read package.json"),
        ("exec x", 1, "run npm install with the package first"),
    ],
)
def test_npm_refuses_what_can_not_be(tmp_path, arguments, code, said):
    done = npm(tmp_path, *arguments.split())
    assert (done.code, done.out) == (code, "") and done.err.startswith("npm error ") and said in done.err, done


@pytest.mark.parametrize("name", ["odd", "constructor", "toString", "__proto__"])
def test_npm_names_a_command_that_it_does_not_have(tmp_path, name):
    done = npm(tmp_path, name)
    assert (done.code, done.out) == (1, "") and done.err.startswith(f'Unknown command: "{name}"\n'), done


def test_npm_passes_on_why_packages_do_not_come(tmp_path):
    with fake_runner(refused("no version\nof x\x1b", "no_match"), refused("not allowed"), [b"[]\n"], []):
        done = npm(tmp_path, "install", "x@9")
        assert (done.code, done.out) == (1, "")
        assert done.err == lines("npm error code ETARGET", "npm error no version", "npm error of x\\u{1b}")
        for said in ["not allowed", "can't be read: []", "ended the request without an answer"]:
            done = npm(tmp_path, "install", "x")
            assert done.code == 1 and said in done.err
    assert "gives no packages (ECONNREFUSED)" in npm(tmp_path, "install", "x").err
    assert not (tmp_path / "package.json").exists()


def test_npm_tells_what_is_there_and_runs_scripts_and_commands(tmp_path):
    place = install_node(tmp_path, "tool", "1.2.3", bin={"say": "say.sh"}, dependencies={"inner": "^1"})
    (place / "say.sh").write_text('#!/bin/sh\necho said "$@"; exit 5\n')
    (place / "say.sh").chmod(0o755)
    install_node(place, "inner", "1.0.0")
    (tmp_path / "node_modules/.bin").mkdir()
    (tmp_path / "node_modules/.bin/say").symlink_to("../tool/say.sh")
    scripts = {"hi": "say $npm_lifecycle_event", "prehi": "echo before"}
    (tmp_path / "package.json").write_text(json.dumps({"name": "w", "version": "1.0.0", "scripts": scripts, "dependencies": {"tool": "1"}}))
    assert npm(tmp_path, "ls").out == lines(f"w@1.0.0 {tmp_path}", "└── tool@1.2.3", "")
    assert npm(tmp_path, "ls", "--all", "inner").out == lines(f"w@1.0.0 {tmp_path}", "└─┬ tool@1.2.3", "  └── inner@1.0.0", "")
    assert npm(tmp_path, "ls", "gone").code == 1
    listed = json.loads(npm(tmp_path, "list", "--json").out)
    assert listed["dependencies"] == {"tool": {"version": "1.2.3", "overridden": False}}
    inside = tmp_path / "sub"
    inside.mkdir()
    assert npm(inside, "root").out == f"{tmp_path / 'node_modules'}\n"
    path = {"PATH": f"{NODE.parent}:/usr/bin:/bin"}
    done = npm(inside, "run", "hi", "--", "a b", **path)
    assert (done.code, done.err) == (5, "") and done.out.endswith("say $npm_lifecycle_event 'a b'\n\nsaid hi a b\n")
    assert "> w@1.0.0 prehi\n> echo before\n\nbefore\n" in done.out
    done = npm(inside, "say", "x", "-y", name="npx", **path)
    assert (done.code, done.out) == (5, "said x -y\n")
    (tmp_path / "package.json").write_text('{"name": "w", "dependencies": {"gone": "2"}}')
    done = npm(tmp_path, "ls")
    assert done.code == 1 and "├── UNMET DEPENDENCY gone@2\n" in done.out and "npm error missing: gone@2, required by w@" in done.err
    assert json.loads(npm(inside, "init", "-y").out.split(":\n\n", 1)[1])["name"] == "sub"
