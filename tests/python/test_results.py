"""Results besides the text: pictures, files, output past the cap, and long runs."""

import base64

import anyio
import pytest
import scope
from server import KINDS, WAITS, configuration, isolator, until


def of_type(result, kind):
    return [block for block in result.content if block.type == kind]


CHARTS = """\
import matplotlib.pyplot as plt
for number in range(1, 13):
    plt.figure(num=number, figsize=(1, 1))
    plt.plot([1, number])
    plt.title("wide" * number)
plt.show()
"""


@pytest.mark.any_engine
async def test_charts_come_in_order_and_omitted_ones_are_noted(server):
    result = await server.call(language="python", entrypoint_code=CHARTS, timeout="30s")
    paths = [file["path"] for file in result.structured_content["files"]]
    assert paths == [f"figure_{number}.png" for number in range(1, 13)]
    assert len(of_type(result, "image")) == 10
    (note,) = result.structured_content["notes"]
    assert '2 of the pictures are not shown ("figure_11.png", "figure_12.png")' in note and "at their addresses" in note
    links = [block.uri for block in of_type(result, "resource_link")]
    (content,) = (await server.client.read_resource(links[-1])).contents
    assert base64.b64decode(content.blob).startswith(b"\x89PNG")


# Of each format one that is whole, one that was cut in half, and one of which only the beginning was written.
PICTURES = """
from io import BytesIO
from PIL import Image

for kind in ["png", "jpeg", "gif", "webp"]:
    data = BytesIO()
    Image.effect_noise((64, 48), 50).convert("RGB").save(data, kind)
    for name, size in [("whole", None), ("half", len(data.getvalue()) // 2), ("begun", 12)]:
        with open(f"{name}.{kind}", "wb") as file:
            file.write(data.getvalue()[:size])
Image.new("1", (20_000, 9000)).save("large.png")
"""

# What texts begin with is no program, film or picture, and what they are called can be something else, too.
TEXTS = {
    "notes.txt": ("GIF89a is how a GIF begins", "text/plain"),
    "text.gif": ("GIF89a is how a GIF begins", "text/plain"),
    "notes": ("BM stands for many things", "text/plain"),
    "data.dat": ("II* 1 2 3", "text/plain"),
    "main.ts": ("const x: number = 1", "text/x-typescript"),
    "go.mod": ("module example", "text/plain"),
    "Main.java": ("class Main {}", "text/x-java"),
    "feed.rss": ('<?xml version="1.0"?><rss/>', "application/rss+xml"),
    "chart.svg": ('<?xml version="1.0"?><svg/>', "image/svg+xml"),
}


@pytest.mark.any_engine
async def test_a_picture_is_what_can_be_decoded_as_one(server):
    result = await server.call(language="python", entrypoint_code=PICTURES, timeout="30s")
    whole = {"whole.png", "whole.jpeg", "whole.gif", "whole.webp"}
    files = {file["path"]: file for file in result.structured_content["files"]}
    assert len(files) == 13
    assert {path for path, file in files.items() if file.get("returned") == "image"} == whole
    assert {picture.mime_type for picture in of_type(result, "image")} == {files[path]["media_type"] for path in whole}
    assert {path for path, file in files.items() if "returned" in file} - whole == {"large.png"}
    broken, large = result.structured_content["notes"]
    assert broken.startswith("8 of the files are named like pictures") and '"begun.gif": ' in broken
    assert '"large.png" with 20000 × 9000 pixels' in large and "8000 pixels on each side" in large


@pytest.mark.any_engine
async def test_a_text_is_one_whatever_it_begins_with(server):
    code = f"for name, (text, _) in {TEXTS}.items(): open(name, 'w').write(text)"
    result = await server.call(language="python", entrypoint_code=code, output_files=["*"])
    types = {block.resource.text: block.resource.mime_type for block in of_type(result, "resource")}
    assert types == dict(TEXTS.values())
    assert not of_type(result, "image")


# Each file gets another content and keeps its size and its time.
KEPT_TIMES = """
import os, shutil, subprocess
import numpy

numpy.memmap("mapped", mode="r+")[0] = ord("x")
shutil.copy2("same", "copied")
subprocess.run(["cp", "-p", "same", "copied by cp"], check=True)
os.replace("moved", "replaced")
before = os.stat("set back")
with open("set back", "r+") as file:
    file.write("x")
os.utime("set back", ns=(before.st_atime_ns, before.st_mtime_ns))
"""


async def test_a_file_has_changed_if_something_else_is_in_it(server):
    names = ["mapped", "same", "copied", "copied by cp", "moved", "replaced", "set back"]
    given = [{"filename": name, "content": name.ljust(16)} for name in names]
    result = await server.call(
        language="python", entrypoint_code=KEPT_TIMES, additional_files=given, output_files=["*"]
    )
    returned = [block.resource.text.rstrip() for block in of_type(result, "resource")]
    changed = {"mapped": "xapped", "copied": "same", "copied by cp": "same", "replaced": "moved", "set back": "xet back"}
    paths = [file["path"] for file in result.structured_content["files"]]
    assert dict(zip(paths, returned, strict=True)) == changed


@pytest.mark.any_engine
async def test_a_file_is_named_by_its_own_name_before_it_is_by_a_pattern(server):
    names = ["report [final].csv", "{a}.csv", "r1.csv", "r[1].csv", "plain.csv", "\\xff.csv"]
    code = f"""
for name in {names}:
    open(name, 'w').write(name)
open(b'\\xff.csv', 'w').write('bytes')
"""
    wanted = ["report [final].csv", "{a}.csv", "r[1].csv", "/workspace/plain.csv", "\\xff.csv", "[x"]
    result = await server.call(language="python", entrypoint_code=code, output_files=wanted)
    returned = [block.resource.text for block in of_type(result, "resource")]
    assert sorted(returned) == sorted(set(names) - {"r1.csv"})
    (note,) = result.structured_content["notes"]
    assert '"[x" matches no file' in note
    # Each has its own address.
    result = await server.call(language="python", entrypoint_code=code, output_files=["*"])
    assert len({file["uri"] for file in result.structured_content["files"]}) == len(names) + 1
    for file in result.structured_content["files"]:
        (content,) = (await server.client.read_resource(file["uri"])).contents
        assert file["path"] == {"bytes": "\\xff.csv", "\\xff.csv": "\\x5cxff.csv"}.get(content.text, content.text)


@pytest.fixture(scope="module", params=KINDS if scope.EVERYTHING else [KINDS[0], KINDS[3]])
async def impatient(request, anyio_backend, tmp_path_factory):
    """A server that answers before a long run has ended, over each transport and with both revisions of the protocol."""
    folder = tmp_path_factory.mktemp("impatient")
    async with isolator(folder, request.param, impatience(folder)) as server:
        yield server


def impatience(folder):
    languages = {"go": {"enabled": False}, "javascript": {"enabled": False}}
    return configuration(folder, results={"detachAfter": "500ms"}, languageSettings=languages)


def slow(seconds):
    return f"import time; print('begun', flush=True); time.sleep({seconds}); print('done')"


async def begin(server, code):
    """Begins a long run; returns its handle."""
    result = await server.call(language="python", entrypoint_code=code)
    data = result.structured_content
    assert not result.is_error and data["status"] == "running", result.content
    assert data["handle"] in result.content[0].text and "get_result" in result.content[0].text
    return data["handle"]


async def fetch(server, **arguments):
    return await server.client.call_tool("get_result", arguments)


@pytest.mark.any_engine
async def test_a_long_run_goes_on_and_its_result_is_read_with_the_handle(impatient):
    handle = await begin(impatient, slow(3))
    with anyio.fail_after(30):
        while not (still := await fetch(impatient, handle=handle)).structured_content["stdout"]:
            pass
        assert still.structured_content["status"] == "running"
        assert (still.structured_content["handle"], still.structured_content["stdout"]) == (handle, "begun\n")
        assert still.content[0].text.endswith("\n\n--- stdout ---\nbegun\n\n--- stderr ---\n")
        while (result := await fetch(impatient, handle=handle)).structured_content["status"] == "running":
            pass
    assert result.structured_content["stdout"] == "begun\ndone\n"
    assert result.content[0].text == "--- stdout ---\nbegun\ndone\n\n--- stderr ---\n"
    again = await fetch(impatient, handle=handle)
    assert again.structured_content == result.structured_content


@pytest.mark.any_engine
async def test_a_long_run_is_ended_by_its_caller(impatient):
    handle = await begin(impatient, "print('x' * 10_000, flush=True)\n" + slow(600))
    there = impatient.sandboxes()
    ended = await fetch(impatient, handle=handle, cancel=True)
    assert ended.is_error and "was ended" in ended.content[0].text
    assert ended.structured_content["status"] == "killed"
    assert ended.structured_content["stdout"] == "x" * 10_000 + "\nbegun\n"
    await until(lambda: there - impatient.sandboxes(), 30, "its sandbox is gone")
    assert (await fetch(impatient, handle=handle)).is_error


@pytest.mark.any_engine
async def test_only_callers_that_ask_for_it_wait_for_the_end(impatient):
    async def tell(progress, total, message):
        pass

    async def call(**options):
        arguments = {"language": "python", "entrypoint_code": slow(2)}
        return await impatient.client.call_tool("execute_code", arguments, **options)

    assert (await call(progress_callback=tell)).structured_content["status"] == "running"
    for options in [{"meta": WAITS}, {"meta": WAITS, "progress_callback": tell}]:
        assert (await call(**options)).structured_content["stdout"] == "begun\ndone\n"


@pytest.mark.any_engine
async def test_an_unknown_handle_is_an_error_of_the_tool(impatient):
    for handle in ["0" * 32, "../x"]:
        result = await fetch(impatient, handle=handle)
        assert result.is_error and "no run with this handle" in result.content[0].text
        data = result.structured_content
        assert (data["status"], data["field"]) == ("invalid_arguments", "handle")
    result = await fetch(impatient)
    assert result.is_error and result.structured_content["field"] == "handle"


@pytest.mark.any_engine
async def test_a_long_run_ends_with_the_server(tmp_path):
    async with isolator(tmp_path, "stdio-auto", impatience(tmp_path)) as server:
        await begin(server, slow(50))
        # What is left behind is looked for when it has ended.
