"""Fits matplotlib and Pillow to sandboxes, and puts the fonts of the image where programs look for them. Runs when the image is
built, with the folder of Python's packages as its argument."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.font_manager as fm

SITE = Path(sys.argv[1])
DATA, FONTS = SITE / "matplotlib/mpl-data", Path("/usr/share/fonts")
DEJAVU, CJK = DATA / "fonts/ttf", FONTS / "truetype/wqy/wqy-microhei.ttc"

# Fonts that programs name and that are not in the image, by the font that stands in for them, as fontconfig would choose one.
# Matplotlib looks for families:
FAMILIES = {
    "DejaVu Sans": ["Arial", "Helvetica"],
    "DejaVu Serif": ["Times New Roman"],
    "DejaVu Sans Mono": ["Courier New"],
    "WenQuanYi Micro Hei": [
        "SimHei", "SimSun", "Microsoft YaHei", "KaiTi", "FangSong", "PingFang SC", "PingFang TC", "Heiti SC", "Heiti TC",
        "STHeiti", "STSong", "Hiragino Sans GB", "WenQuanYi Zen Hei", "Noto Sans CJK SC", "Noto Sans CJK TC",
        "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR", "Noto Serif CJK SC",
        "Source Han Sans SC", "Source Han Sans CN", "Arial Unicode MS", "Microsoft JhengHei", "MS Gothic", "Yu Gothic",
        "Meiryo", "Hiragino Sans", "IPAexGothic", "IPAGothic", "TakaoPGothic", "Malgun Gothic", "NanumGothic", "AppleGothic",
    ],
}  # fmt: skip

# Pillow looks for files, by their names alone or with the folders of Debian.
MICROSOFT, LIBERATION, FREE = "truetype/msttcorefonts/", "truetype/liberation/Liberation", "truetype/freefont/Free"
FILES = {
    "DejaVuSans": ("arial Arial verdana Verdana calibri tahoma segoeui helvetica Helvetica", "Sans-Regular", "Sans"),
    "DejaVuSans-Bold": ("arialbd Arial_Bold verdanab calibrib tahomabd segoeuib", "Sans-Bold", "SansBold"),
    "DejaVuSans-Oblique": ("ariali Arial_Italic verdanai calibrii segoeuii", "Sans-Italic", "SansOblique"),
    "DejaVuSans-BoldOblique": ("arialbi Arial_Bold_Italic verdanaz calibriz", "Sans-BoldItalic", "SansBoldOblique"),
    "DejaVuSerif": ("times Times_New_Roman georgia Georgia", "Serif-Regular", "Serif"),
    "DejaVuSerif-Bold": ("timesbd Times_New_Roman_Bold georgiab", "Serif-Bold", "SerifBold"),
    "DejaVuSerif-Italic": ("timesi Times_New_Roman_Italic georgiai", "Serif-Italic", "SerifItalic"),
    "DejaVuSerif-BoldItalic": ("timesbi Times_New_Roman_Bold_Italic georgiaz", "Serif-BoldItalic", "SerifBoldItalic"),
    "DejaVuSansMono": ("cour Courier_New consola", "Mono-Regular", "Mono"),
    "DejaVuSansMono-Bold": ("courbd Courier_New_Bold consolab", "Mono-Bold", "MonoBold"),
    "DejaVuSansMono-Oblique": ("couri Courier_New_Italic consolai", "Mono-Italic", "MonoOblique"),
    "DejaVuSansMono-BoldOblique": ("courbi Courier_New_Bold_Italic consolaz", "Mono-BoldItalic", "MonoBoldOblique"),
}
CJK_FILES = """
    truetype/wqy/wqy-zenhei.ttc opentype/noto/NotoSansCJK-Regular.ttc opentype/noto/NotoSansCJKsc-Regular.otf
    truetype/droid/DroidSansFallbackFull.ttf truetype/msttcorefonts/simhei.ttf truetype/msttcorefonts/SimHei.ttf
    truetype/msttcorefonts/simsun.ttc truetype/msttcorefonts/msyh.ttc truetype/msttcorefonts/msyh.ttf
    truetype/msttcorefonts/malgun.ttf truetype/msttcorefonts/msgothic.ttc truetype/msttcorefonts/meiryo.ttc
"""


def link(path, font):
    path = FONTS / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(font)


def links():
    for font in sorted(DEJAVU.glob("DejaVu*.ttf")):
        link(f"truetype/dejavu/{font.name}", font)
    for font, (microsoft, liberation, free) in FILES.items():
        font = DEJAVU / f"{font}.ttf"
        for path in [*(MICROSOFT + name for name in microsoft.split()), LIBERATION + liberation, FREE + free]:
            link(f"{path}.ttf", font)
    for path in CJK_FILES.split():
        link(path, CJK)


def font_list():
    """Matplotlib looks for its list of fonts only in a folder that it can write to, and such a folder is always empty in a new
    sandbox. So the list is made once and the lookup is pointed to it."""
    fonts = fm.fontManager
    for family, others in FAMILIES.items():
        entries = [entry for entry in fonts.ttflist if entry.name == family]
        fonts.ttflist += [replace(entry, name=other) for other in others for entry in entries]
    fm.json_dump(fonts, DATA / f"fontlist-v{fm.FontManager.__version__}.json")


def change(module, *changes):
    """Changes a module of a package. Each pattern must match exactly that number of times."""
    path = SITE / module
    text = path.read_text()
    for pattern, new, times in changes:
        text, found = re.subn(pattern, lambda match, new=new: match.expand(new), text, flags=re.MULTILINE)
        if found != times:
            sys.exit(f"{module} is not as it was when this was written: {pattern}")
    path.write_text(text)


def changes():
    # Figures that a program shows become pictures, with each backend that has no display.
    manager = r"^( +manager_class = .*lambda cls: )FigureManagerBase\)"
    ours = '__import__("isolator_pictures").FigureManager)'
    change("matplotlib/backend_bases.py", (manager, rf"\1{ours}", 1))

    # Backends that open windows are not in the image. A program that wants one gets the pictures without it.
    change(
        "matplotlib/pyplot.py",
        (
            r"^    (module = backend_registry\.load_backend_module\()newbackend\)\n",
            r'''    try:
        \1newbackend)
    except (ImportError, RuntimeError):
        if newbackend.startswith("module://"):
            raise
        \1"agg")
''',
            1,
        ),
        (r'"macosx", "qtagg", "gtk4agg", "gtk3agg", "tkagg", "wxagg"\]', "]", 1),
    )

    # Without a viewer of pictures, Pillow's `show` does nothing.
    change(
        "PIL/ImageShow.py",
        (
            r"^class IPythonViewer",
            r'''class PictureViewer(Viewer):
    """The viewer of a sandbox, which makes a file."""

    format = "PNG"

    def show_image(self, image: Image.Image, **options: Any) -> int:
        from isolator_folder import new_file

        image.save(new_file(), self.format)
        return 1


register(PictureViewer)


\g<0>''',
            1,
        ),
    )

    name = r'f"fontlist-v\{FontManager.__version__\}.json"\)'
    change(
        "matplotlib/font_manager.py",
        (rf"mpl.get_cachedir\(\), ({name})", r"mpl.get_data_path(), \1", 1),
        # A glyph that is in none of the fonts of a text is then looked for in the font for Chinese, Japanese and Korean. A
        # setting would not do: Seaborn, matplotlib's styles and many programs set the fonts themselves.
        (
            r"^( +)return fpaths\n",
            r'''\1if fontext == "ttf" and directory is None:
\1    fpaths.append(self.findfont("WenQuanYi Micro Hei"))
\g<0>''',
            1,
        ),
        # A family that is missing is looked for with each text.
        (r"_log\.warning\((\s*['\"]findfont: )", r"_warn_once(\1", 5),
        (
            r"^_log = .*\n",
            r'''\g<0>_warned = set()


def _warn_once(message, *args):
    message %= args
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s", message)

''',
            1,
        ),
    )


font_list()
changes()
links()
