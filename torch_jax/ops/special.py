"""Bessel and Airy functions, and the error function scaled.

Each is a series of Chebyshev polynomials on an interval near 0, and far from it a leading term
times such a series in a power of ``1/x``. A dtype uses the coefficients above its precision.

The series expand PyTorch's functions, also where these are not precise: J and Y differ from the
true functions by up to 1e-6 for x between 2.5 and 15, Ai by up to 3e-6 between -4.5 and -2.09.
Of infinity J, Y, I and Ai are NaN, as in PyTorch.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from torch_jax.ops.derivatives import slope
from torch_jax.ops.unary import Unary, float_op

# fmt: off
# J0(x) / ((x² - a²)(x² - b²)) in x², 0..25, where a and b are its zeros there
J0 = (
    0.0034337752160531385, -0.001974794475835967, 0.00024728025743427117, -1.795164515576873e-05,
    8.614333104800384e-07, -2.952087697149658e-08, 7.609033829217979e-10, -1.5336630800730884e-11,
    2.4626167960435584e-13, -2.6939627137596002e-15, 3.621318366865987e-17,
    -1.1887910815078666e-17, 1.6800099460698212e-18, -1.369304169812431e-19,
)
# J1(x) / (x (x² - a²)(x² - b²)) in x², 0..25
J1 = (
    0.00045465309944436405, -0.00021348093678189576, 2.2341254329203587e-05,
    -1.3876734396514003e-06, 5.806904769738448e-08, -1.7621200505735866e-09,
    4.0723858446725036e-11, -7.431344888125558e-13, 1.0850922751568343e-14,
    -1.1573851256430772e-16, 2.4812075991835476e-18, -4.366023568546802e-19, 4.715582951493255e-20,
)
# Y0(x) - 2/π log(x) J0(x) in x², 0..25
Y0 = (
    0.2060525761627592, -0.1301752242526963, -0.2918947214340262, 0.10268287912266855,
    -0.014279160246967, 0.001116462844155951, -5.677528296443775e-05, 2.0406696985122637e-06,
    -5.4762971991182165e-08, 1.1413745168818945e-09, -1.9055906984431255e-11,
    2.576486792956086e-13, -2.0870548588976223e-15, -7.334281653559834e-17, 7.040596927834971e-18,
)
# (Y1(x) - 2/π (log(x) J1(x) - 1/x)) / x in x², 0..25
Y1 = (
    0.053107445706233, 0.14189451008426185, -0.08834328792899256, 0.017111110299021428,
    -0.0017057851398503347, 0.00010525754653432, -4.445079512315199e-06, 1.3699029158249718e-07,
    -3.223213811974605e-09, 5.989590564600882e-11, -8.877763985716512e-13, 9.752566243545404e-15,
    -2.763726323171215e-16, 4.7199385216260795e-17, -4.983934593496683e-18,
)
# Jv(x) = √(2/πx) (P cos χ - 5/x Q sin χ) and Yv(x) = √(2/πx) (P sin χ + 5/x Q cos χ), where
# χ = x - (2v + 1)π/4: P and Q in (5/x)², 0..1
P0 = (
    0.9986523398776954, -0.00132937162125028, 1.7613055512905588e-05, -6.319367118733068e-07,
    3.948825587093806e-08, -3.5409678948018748e-09, 4.103246366878883e-10, -5.765747661748224e-11,
    9.423105658197595e-12, -1.7401401321940913e-12, 3.555789429113239e-13, -7.914393648373568e-14,
    1.896060788503277e-14, -4.843156541752057e-15, 1.3077561071751186e-15, -3.7006093363485433e-16,
    1.0876861356679822e-16, -3.292377415399614e-17,
)
Q0 = (
    -0.02472972060950684, 0.00026328692706120775, -6.714911204819654e-06, 2.3693696425407566e-07,
    -3.63186291268723e-08, 4.157295206331875e-09, -1.7336250787277893e-10, -3.366181299870211e-11,
    4.93719778570099e-12, 2.196299531555648e-12, -1.5511034656707918e-12, 6.005026065262919e-13,
    -1.8040456172024737e-13, 4.337576615831543e-14, -6.843903189126696e-15, -6.607177621115033e-16,
    1.2894247656218021e-15, -8.101795529096039e-16, 4.0507583787814893e-16,
    -1.8329007105757225e-16, 7.854184612932622e-17, -3.256218657358216e-17, 1.321496951545017e-17,
    -5.287021917579329e-18, 2.0945408387613846e-18, -8.241052174837487e-19,
)
P1 = (
    1.00226762068534, 0.0022437352958079985, -2.3071018862548286e-05, 7.639181732533904e-07,
    -4.589685232343396e-08, 4.020515478418958e-09, -4.586773977177741e-10, 6.373158961889098e-11,
    -1.032734465491949e-11, 1.894327009763073e-12, -3.8497198490412676e-13, 8.529624309002262e-14,
    -2.0355916699425228e-14, 5.182343730929824e-15, -1.3951447401711775e-15, 3.936182697971873e-16,
    -1.1532339156136912e-16, 3.478264069299023e-17,
)
Q1 = (
    0.0746181898003855, -0.00037292147742224406, 8.648397619229384e-06, -1.7901404530488103e-07,
    5.5387644213316835e-08, -6.136265131337402e-09, -6.284591056564156e-11, 1.3826454848895834e-10,
    -2.0183931808442195e-11, -3.236796070446084e-12, 3.0314936116947345e-12,
    -1.2028710363779324e-12, 3.572893375740832e-13, -8.245599434841005e-14, 1.1037315824353067e-14,
    2.6106216887706935e-15, -3.1360772783981725e-15, 1.8454303493997104e-15,
    -8.972965198304756e-16, 3.9938923113499627e-16, -1.691962255390642e-16, 6.953151598857602e-17,
    -2.801497173702565e-17, 1.1138381249211992e-17, -4.388087472625501e-18, 1.7176891171686046e-18,
)
# K0(x) + log(x/2) I0(x) in x², 0..4
K0 = (
    -0.2676636966169514, 0.3442898999246285, 0.0359799365153615, 0.001264615411446926,
    2.286212103119452e-05, 2.5347910790261494e-07, 1.904516377220209e-09, 1.0349695257633625e-11,
    4.2598161427910826e-14, 1.3744654358807508e-16,
)
# x (K1(x) - log(x/2) I1(x)) in x², 0..4
K1 = (
    0.7626501136694739, -0.3531559607765449, -0.12261118082265715, -0.006975723859639864,
    -0.0001730288957513052, -2.4334061415659684e-06, -2.213387630734726e-08,
    -1.4114883926335278e-10, -6.666901694199329e-13, -2.427449850519366e-15,
)
# √x exp(x) Kv(x) in 2/x, 0..1
K0_LARGE = (
    1.2201515410329777, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802,
    1.39498137188765e-05, -1.8317555227191195e-06, 2.766813639445015e-07, -4.660489897687948e-08,
    8.574034017414225e-09, -1.6975345093890614e-09, 3.5773972814003283e-10, -7.957489244477396e-11,
    1.8559491149549264e-11, -4.514597883374519e-12, 1.1403405882073441e-12,
    -2.9800969231481784e-13, 8.032890775068375e-14, -2.2275133267462965e-14, 6.340076476276646e-15,
    -1.848593377920907e-15, 5.5120559994043335e-16, -1.6782311257549006e-16,
    5.2103917776435543e-17,
)
K1_LARGE = (
    1.3603130952422213, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162,
    -1.936197974166083e-05, 2.406484947837217e-06, -3.5019606030878126e-07, 5.7410841254500495e-08,
    -1.0345762465678097e-08, 2.0150497551970347e-09, -4.1903547593419254e-10,
    9.218315187605315e-11, -2.129967838427791e-11, 5.139639673482343e-12, -1.2891739609498229e-12,
    3.348419666052243e-13, -8.976705182010146e-14, 2.4771544242195988e-14, -7.0198370892147685e-15,
    2.038703166239861e-15, -6.057047270643018e-16, 1.8380935752430455e-16, -5.689462849193648e-17,
)
# Ai(x) in x, -2.09..2.09
AI = (
    0.25016415026992705, -0.1746446855108715, -0.1318787539422211, 0.11238869189900122,
    -0.022401282002655964, -0.006933978640621256, 0.004492029515977627, -0.0006968102253238793,
    -0.0001317648763283415, 7.302721227930494e-05, -9.577293087093101e-06, -1.2908837033474407e-06,
    6.414434964282927e-07, -7.402731511836871e-08, -7.714019830072944e-09, 3.524418178259444e-09,
    -3.6663365114328187e-10, -3.1052536795666145e-11, 1.3252061325307976e-11,
    -1.2628686757488118e-12, -8.993096794938105e-14, 3.6237691767896735e-14,
    -3.2006117596763243e-15, -1.9637232380131062e-16, 7.53018445603888e-17,
    -6.2189656969656655e-18,
)
# 2√π x^¼ exp(ζ) Ai(x), where ζ = ⅔ x^(3/2), in ζ(2.09)/ζ, 0..1
AI_POSITIVE = (
    0.985273793324794, -0.014006347771048734, 0.0006605310070622323, -5.280840625470318e-05,
    5.652165861924648e-06, -7.346344805681573e-07, 1.1006706813470164e-07, -1.841361279305993e-08,
    3.367381554205339e-09, -6.631134483130922e-10, 1.3905740906735748e-10, -3.079018603117135e-11,
    7.150438057939931e-12, -1.7322679891618035e-12, 4.358557784212428e-13, -1.1348049138356957e-13,
    3.047936812470736e-14, -8.42268715468561e-15, 2.389284522002482e-15, -6.94383544461048e-16,
    2.0639239529561746e-16, -6.264518513377105e-17, 1.9390675281854292e-17,
)
# √π x^¼ Ai(-x) = F sin(ζ + π/4) - G cos(ζ + π/4): F and G in ζ(2.09)/ζ, 0..1
AI_SIN = (
    0.997134727823651, -0.0036970559150620048, -0.0007529992009921866, 7.932429453474252e-05,
    -1.2360512092028202e-06, -1.411098019699868e-06, 3.3179007256320457e-07, -4.00077164838806e-08,
    -2.931764181536993e-09, 3.1042474737324395e-09, -9.171610284337199e-10, 1.5351366638104267e-10,
    -2.904891726657148e-13, -1.174154743904056e-11, 5.5916521107842015e-12,
    -1.6576890337254771e-12, 2.8836735527063e-13, 1.9532584805837023e-14, -4.056104119881902e-14,
    1.9982443989623544e-14, -6.6599274291558184e-15, 1.5089311730939168e-15,
    -8.107043047612647e-17, -1.4391429478685104e-16, 1.0167859144450065e-16,
    -4.615646303052397e-17, 1.604941430541087e-17,
)
AI_COS = (
    0.016204876559552557, 0.01573906410222418, -0.0005189240056252863, -3.9929203507675145e-05,
    1.2179008266882377e-05, -1.0919696202951647e-06, -1.2089200231542163e-08,
    5.8153530389511576e-08, -1.7125675325905713e-08, 1.7467856896483587e-09,
    2.4959067731920084e-10, -1.56481314024362e-10, 5.7895844657747605e-11, -1.732968327446846e-11,
    2.4202360748159482e-12, 7.87676243762807e-13, -6.069863321244322e-13, 1.9674566335278602e-13,
    -3.6342657189095974e-14, 1.2255497752431267e-15, 2.304116821683577e-15,
    -1.4964275664607826e-15, 7.408661116705266e-16, -3.000018530580744e-16, 8.607935476080962e-17,
    -7.888138354363884e-18, -8.856150477326703e-18, 6.954812187397988e-18, -3.0893610868829323e-18,
    9.43288772525334e-19,
)
# erfcx(x) / t in t = 3 / (3 + x), 0..1
ERFCX = (
    0.4711460746602906, 0.37715894969156577, 0.11803603344749546, 0.028362346699695153,
    0.004871757757605546, 0.00045985238787654427, -2.143022238105315e-05, -1.301447369924135e-05,
    -8.809283582853514e-07, 2.7464800479702846e-07, 4.415991899223785e-08, -6.398408385575483e-09,
    -1.6768357212484645e-09, 1.9473354700890025e-10, 6.247441303469389e-11, -8.124557552244496e-12,
    -2.330314613222566e-12, 4.191038539225333e-13, 8.19333526881303e-14, -2.3352472107929263e-14,
    -2.2442585649165363e-15, 1.2811435298050507e-15, 1.1054582965396302e-18, -6.44579513564904e-17,
)
# fmt: on

AIRY_LIMIT = 2.09
J0_ZEROS = (5.783185962946784, 30.471262343662087)  # squared
J1_ZEROS = (14.681970642123893, 49.21845632169461)


def chebyshev_series(
    x: jax.Array, low: float, high: float, coefficients: tuple[float, ...]
) -> jax.Array:
    """Return ``Σ c_k T_k(t)`` by Clenshaw's recurrence; ``t`` is ``x`` mapped to -1..1.

    Trailing coefficients that do not count in the dtype of ``x`` are left out.
    """
    least = float(jnp.finfo(x.dtype).eps) / 8 * max(map(abs, coefficients))
    count = max(k for k, c in enumerate(coefficients) if abs(c) > least)
    t = (x + x - (low + high)) / (high - low)
    current = previous = jnp.zeros_like(x)
    for c in coefficients[count:0:-1]:
        current, previous = (t + t) * current - previous + c, current
    return t * current - previous + coefficients[0]


def _waves(x, order):
    """Return ``√(2/πx)`` times P and 5/x Q, and the angle, of ``order``, for ``x`` >= 5."""
    x = jnp.maximum(x, 5)
    near = 5 / x
    p, q = (chebyshev_series(near * near, 0, 1, c) for c in ((P0, Q0), (P1, Q1))[order])
    size = math.sqrt(2 / math.pi) / jnp.sqrt(x)
    angle = x - (2 * order + 1) * math.pi / 4
    return size * p, size * near * q, angle


def _enter_j(order: int, zeros: tuple[float, float], coefficients: tuple[float, ...]) -> Unary:
    """Enter ``J0`` or ``J1``, which is odd; return it."""

    def function(x):
        size = jnp.abs(x)
        p, q, angle = _waves(size, order)
        near = math.prod(x * x - zero for zero in zeros)  # as factors: precise beside them
        near = near * chebyshev_series(x * x, 0, 25, coefficients)
        far = p * jnp.cos(angle) - q * jnp.sin(angle)
        if order:
            near, far = x * near, jnp.where(x < 0, -far, far)
        return jnp.where(size <= 5, near, far)

    float_op(f"special_bessel_j{order}", function)
    return function


bessel_j0 = _enter_j(0, J0_ZEROS, J0)
bessel_j1 = _enter_j(1, J1_ZEROS, J1)


def _enter_y(order: int, near: Unary) -> None:
    """Enter ``Y0`` or ``Y1``: -inf at 0, NaN below."""

    def function(x):
        p, q, angle = _waves(x, order)
        far = p * jnp.sin(angle) + q * jnp.cos(angle)
        return jnp.where(x <= 5, jnp.where(x == 0, -np.inf, near(x)), far)

    float_op(f"special_bessel_y{order}", function)


def _y1_near(x):
    pole = 2 / math.pi * (jnp.log(x) * bessel_j1(x) - 1 / x)
    return x * chebyshev_series(x * x, 0, 25, Y1) + pole


_enter_y(0, lambda x: chebyshev_series(x * x, 0, 25, Y0) + 2 / math.pi * jnp.log(x) * bessel_j0(x))
_enter_y(1, _y1_near)


def _enter_k(order: int, near: Unary, coefficients: tuple[float, ...]) -> None:
    """Enter ``K0`` or ``K1``, inf at 0 and NaN below, and that times ``exp(x)``."""

    def far(x):
        x = jnp.maximum(x, 2)
        return chebyshev_series(2 / x, 0, 1, coefficients) / jnp.sqrt(x)

    def plain(x):
        return jnp.where(x <= 2, jnp.where(x == 0, np.inf, near(x)), jnp.exp(-x) * far(x))

    def scaled(x):
        return jnp.where(x <= 2, jnp.where(x == 0, np.inf, jnp.exp(x) * near(x)), far(x))

    float_op(f"special_modified_bessel_k{order}", plain)
    float_op(f"special_scaled_modified_bessel_k{order}", scaled)


_enter_k(0, lambda x: chebyshev_series(x * x, 0, 4, K0) - jnp.log(x / 2) * jsp.i0(x), K0_LARGE)
_enter_k(1, lambda x: chebyshev_series(x * x, 0, 4, K1) / x + jnp.log(x / 2) * jsp.i1(x), K1_LARGE)


def spherical_bessel_j0(x):
    """Return ``sin(x) / x``, by its series near 0, and 0 at infinity."""
    small = jnp.abs(x) < 0.5
    series = jnp.zeros_like(x)
    for k in reversed(range(7)):
        series = series * (x * x) + (-1) ** k / math.factorial(2 * k + 1)
    safe = jnp.where(small, 1, x)
    return jnp.where(small, series, jnp.where(jnp.isinf(x), 0, jnp.sin(safe) / safe))


def _airy_phase(x):
    return 2 * x * x**0.5 / 3


def _airy_positive(x):
    """Compute from ``AIRY_LIMIT`` up: exponentially small."""
    x = jnp.maximum(x, AIRY_LIMIT)
    zeta = _airy_phase(x)
    series = chebyshev_series(_airy_phase(AIRY_LIMIT) / zeta, 0, 1, AI_POSITIVE)
    return series * jnp.exp(-zeta) / (2 * math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(x)))


def _airy_negative(x):
    """Return ``Ai(-x)`` from ``AIRY_LIMIT`` up: a wave."""
    x = jnp.maximum(x, AIRY_LIMIT)
    zeta = _airy_phase(x)
    near = _airy_phase(AIRY_LIMIT) / zeta
    f, g = (chebyshev_series(near, 0, 1, c) for c in (AI_SIN, AI_COS))
    angle = zeta + math.pi / 4
    wave = jnp.sin(angle) * f - jnp.cos(angle) * g
    return wave / (math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(x)))


def airy_ai(x):
    """Return ``Ai``: NaN at both infinities."""
    far = jnp.where(x < 0, _airy_negative(-x), _airy_positive(x))
    near = chebyshev_series(x, -AIRY_LIMIT, AIRY_LIMIT, AI)
    value = jnp.where((x >= -AIRY_LIMIT) & (x < AIRY_LIMIT), near, far)
    return jnp.where(jnp.isinf(x), np.nan, value)


@slope(lambda x: 2 * x * erfcx(x) - 2 / math.sqrt(math.pi))
def erfcx(x):
    """Return ``exp(x²) erfc(x)``, without the factors for ``x`` > 0, where they overflow."""
    t = 3 / (3 + jnp.abs(x))
    value = t * chebyshev_series(t, 0, 1, ERFCX)
    return jnp.where(x < 0, 2 * jnp.exp(x * x) - value, value)


for _function in (airy_ai, erfcx, spherical_bessel_j0):
    float_op(f"special_{_function.__name__}", _function)
