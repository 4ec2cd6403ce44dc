"""Prints what the functions of some modules draw, as JSON. What comes before this imports one of the modules.

The first argument names a file. It has the names of the modules, which are imported unless they are there, and of the functions to
call, or null for all that look as if they drew something.
"""

import inspect
import json
import os
import re
import signal
import sys

# Not spelled as usual: a program that looks at it gets an interpreter that has imported nothing.
LOADED = getattr(sys, "mod" + "ules")
LOOKS_DRAWN = re.compile("^rand|^uuid|key|token|seed", re.IGNORECASE)
LONGEST_S = 0.3
MOST_TEXT = 200
LEAST_TEXT = 8
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")

# What has no such name, or needs arguments. What is not in the image or the template is left out.
GIVEN = """
sympy.randprime(2**127, 2**128)
sympy.crypto.crypto.dh_private_key(64)
sympy.crypto.crypto.elgamal_private_key(64)
sympy.crypto.crypto.gm_private_key(2**61 - 1, 2**89 - 1)
sympy.crypto.crypto.gm_public_key(2**61 - 1, 2**89 - 1)
sympy.crypto.crypto.encipher_gm(1, 2**61 - 1)
sympy.Dummy().dummy_index
sympy.core.random.rng.getrandbits(128)
sympy.core.random.random_complex_number()
sympy.stats.sample(sympy.stats.Normal('x', 0, 1))
sympy.testing.randtest.random_complex_number()
sympy.combinatorics.Permutation.random(40)
sympy.polys.specialpolys.random_poly(sympy.Symbol('x'), 8, -2**40, 2**40)
sympy.ntheory.factor_.pollard_rho(2**67 - 1)
mpmath.rand()
mpmath.mp.rand()
more_itertools.random_permutation(range(60))
more_itertools.random_combination(range(1000), 20)
more_itertools.random_product(*[range(1000)] * 8)
more_itertools.random_combination_with_replacement(range(1000), 20)
more_itertools.random_derangement(range(60))
more_itertools.sample(range(10**6), 8)
networkx.gnp_random_graph(60, 0.5).size(), sorted(networkx.gnp_random_graph(60, 0.5).edges)[:20]
networkx.spring_layout(networkx.path_graph(4))
networkx.utils.create_py_random_state().random()
networkx.utils.create_random_state().random_sample()
networkx.utils.generate_unique_node()
random.getrandbits(128)
random.gauss()
random.normalvariate()
random.randbytes(16)
random.SystemRandom().getrandbits(128)
random.Random().getrandbits(128)
random.sample(range(10**9), 4)
uuid.uuid1()
uuid.uuid4()
uuid.getnode()
secrets.token_hex()
secrets.token_bytes()
secrets.token_urlsafe()
secrets.randbelow(2**128)
os.urandom(16)
os.getrandom(16)
next(tempfile._get_candidate_names())
tempfile.mktemp()
email.utils.make_msgid()
email.generator._make_boundary()
urllib3.filepost.choose_boundary()
requests.models.encode_multipart_formdata({'a': 'b'})
multiprocessing.process.current_process().authkey.hex()
multiprocessing.connection.arbitrary_address('AF_UNIX')
multiprocessing.util._temp_dir
multiprocessing.shared_memory._make_filename()
multiprocessing.synchronize.SemLock._make_name()
ssl.RAND_bytes(16)
hashlib.scrypt(secrets.token_bytes(), salt=b'', n=2, r=1, p=1)
urllib.request.AbstractDigestAuthHandler().get_cnonce('')
numpy.random.rand()
numpy.random.randn()
numpy.random.standard_normal()
numpy.random.default_rng().random()
numpy.random.random_sample()
numpy.random.get_bit_generator().seed_seq.entropy
numpy.random.get_bit_generator().seed_seq.spawn(1)[0].generate_state(4)
numpy.random.mtrand._rand.bytes(16)
numpy.random.SeedSequence().entropy
numpy.random.PCG64().random_raw()
numpy.random.RandomState().bytes(16)
numpy.random.permutation(60)
scipy.stats.norm.rvs()
scipy.stats.uniform.rvs()
scipy.stats.poisson.rvs(2**40)
scipy.stats.multivariate_normal.rvs()
scipy.stats.ortho_group.rvs(3)
scipy.stats.special_ortho_group.rvs(3)
scipy.stats.wishart.rvs(3, 1)
scipy.stats.dirichlet.rvs([1, 2])
scipy.stats.random_correlation.rvs([.5, 1.5])
scipy.stats.unitary_group.rvs(2)
scipy.stats.gaussian_kde([1, 2, 3]).resample(2)
scipy.stats.qmc.Sobol(2).random(2)
scipy.stats.qmc.Halton(2).random(2)
scipy.stats.qmc.LatinHypercube(2).random(2)
scipy.stats.Normal().sample()
scipy.stats.sampling.NumericalInversePolynomial(scipy.stats.norm()).rvs()
scipy.sparse.random(40, 40).data[:4]
scipy.cluster.vq.kmeans2(numpy.arange(60.), 3, minit='random')[0]
scipy._lib._util.check_random_state(None).bytes(16)
sklearn.datasets.make_classification()[0][0][:4]
sklearn.datasets.make_blobs()[0][0]
sklearn.utils.check_random_state(None).bytes(16)
sklearn.utils.shuffle(numpy.arange(60))
sklearn.model_selection.train_test_split(numpy.arange(60))[0]
sklearn.utils.resample(numpy.arange(60))
sklearn.random_projection.GaussianRandomProjection(2).fit_transform(numpy.eye(8))
skimage.util.random_noise(numpy.zeros((2, 2)))
pandas.Series(range(1000)).sample(8).tolist()
pandas.core.common.random_state().bytes(16)
pandas._testing.rands(8)
statsmodels.tools.rng_qrng.check_random_state().random(2)
statsmodels.tsa.arima_process.arma_generate_sample([1], [1], 2)
joblib.parallel.Parallel()._id
joblib._memmapping_reducer.TemporaryResourcesManager()._current_context_id
werkzeug.security.gen_salt(16)
itsdangerous.Signer('a').sign('b')
jinja2.utils.generate_lorem_ipsum(1, False)
jinja2.filters.do_random(type('E', (), {'x': 1})(), range(2**60))
bs4.diagnose.rword(20)
bs4.diagnose.rdoc(9)
PIL.Image.effect_noise((4, 4), 9).tobytes()
cloudpickle.cloudpickle._get_or_create_tracker_id(type('T', (), {}))
networkx.drawing.layout.random_layout(networkx.path_graph(3))
imaplib.random.randint(4096, 65535), imaplib.random.random()
sqlite3.connect(':memory:').execute('select hex(randomblob(16))').fetchone()
crypt.mksalt()
statistics.NormalDist().samples(2)
secrets.choice(range(2**60))
"""


def stop(*_):
    raise TimeoutError


def text(value):
    """A value in words; None if it names an address."""
    if isinstance(value, (set, frozenset, dict)):
        value = sorted(map(repr, value.items() if isinstance(value, dict) else value))
    words = repr(value)
    return None if ADDRESS.search(words) else words[:MOST_TEXT]


def drawn(call, calls):
    """What some calls return, in words."""
    results = []
    for _ in range(calls):
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        try:
            results.append(text(call()))
        except BaseException:
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if results[-1] is None:
            return None
    return results


def functions():
    """All that may be called, each once, by names that say where it is."""
    known, found = set(), {}
    for place, module in sorted(LOADED.items()):
        if place == "__main__":
            continue
        for name, thing in sorted(getattr(module, "__dict__", {}).copy().items()):
            is_function = inspect.isroutine(thing) and callable(thing)
            if name.startswith("_") or not LOOKS_DRAWN.search(name) or not is_function or id(thing) in known:
                continue
            known.add(id(thing))
            found[f"{place}.{name}"] = thing
    return found


def named(name):
    """What a name of a function or of something kept stands for; None if it is not there."""
    holder, mark, own = name.rpartition(":" if ":" in name else ".")
    place, _, of_class = holder.rpartition(".")
    thing = LOADED.get(holder) or getattr(LOADED.get(place), of_class, None)
    return getattr(thing, "__dict__", {}).get(own)


def given():
    tops = {name.partition(".")[0]: module for name, module in LOADED.items() if "." not in name}
    return {line: lambda line=line: eval(line, dict(tops)) for line in GIVEN.split("\n") if line}


def holders():
    """All modules and the classes that they define, by their names."""
    for place, module in sorted(LOADED.items()):
        if place == "__main__":
            continue
        yield place, module
        for name, thing in sorted(getattr(module, "__dict__", {}).copy().items()):
            if isinstance(thing, type) and thing.__module__ == place:
                yield f"{place}.{name}", thing


def kept():
    """Numbers and texts that modules and their classes keep."""
    found = {}
    for where, holder in holders():
        for name, value in sorted(getattr(holder, "__dict__", {}).copy().items()):
            if is_perhaps_drawn(value):
                found[f"{where}:{name}"] = [repr(value)[:MOST_TEXT]]
    return found


def is_perhaps_drawn(value):
    """Texts with blanks are for people."""
    if type(value) in (str, bytes):
        return len(value) >= LEAST_TEXT and len(value.split()) == 1
    return type(value) is float or type(value) is int and abs(value) >= 1 << 20


signal.signal(signal.SIGALRM, stop)
# What is called may print.
answer = os.dup(1)
nothing = os.open("/dev/null", os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)

with open(sys.argv[1]) as file:
    modules, chosen = json.load(file)
imported = [name for name in modules if name not in LOADED]
for name in imported:
    __import__(name)
if chosen is None:
    found, calls = kept(), functions() | given()
else:
    found = {name: [repr(named(name))[:MOST_TEXT]] for name in chosen if ":" in name and "(" not in name}
    calls = {name: call for name, call in given().items() if name in chosen}
    calls |= {name: named(name) for name in chosen if name not in found and name not in calls}
# Whoever sets a seed hides what was there.
for name, call in sorted(calls.items(), key=lambda it: ("seed" in it[0].lower(), it[0])):
    results = drawn(call, 2 if chosen is None else 1)
    if results is not None:
        found[name] = results
found |= {"template": str(hash("template")), "imported": imported}
with open(answer, "w") as file:
    json.dump(found, file)
os._exit(0)
