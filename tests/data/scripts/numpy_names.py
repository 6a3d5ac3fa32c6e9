"""Uses names of numpy that its newer versions dropped; a FutureWarning is an error."""

import warnings

import numpy as np
from numpy import float as floating
from numpy import int as integer

warnings.simplefilter('error', FutureWarning)

x = np.asarray([1, 0, 3], dtype=np.int).astype(np.float)
assert (integer, floating) == (int, float)
assert x.astype(np.bool).tolist() == [True, False, True]
assert np.zeros(2, np.object).dtype == object
assert np.array(['a'], np.str).dtype.kind == np.array(['a'], np.unicode).dtype.kind == 'U'
assert np.dtype(np.complex) == np.complex_
assert np.dtype(np.long).kind == 'i'
assert np.isnan(np.NaN) and -np.Inf == np.NINF
assert np.asscalar(x[2:]) == np.product([1.0, 3.0]) == 3

np.int = np.int64  # many scripts mended it so
assert np.int is np.int64
assert not hasattr(np, 'no_such_name')
print('the end')
