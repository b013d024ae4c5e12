// Periodised orthogonal wavelets. No include guard by design: included inside each level's namespace. Sums
// run in order of the filter's taps, as in the NumPy reference (hvd_gradflow/device/numpy_wavelet.py), so
// that all give the same bits; the filters come from Python, as do the extents of what is transformed.

inline float wavelet_bound(float v, bool finite) {
  constexpr float kMost = 3.40282346638528859812e+38F;
  if (!finite) return v;
  v = v > kMost ? kMost : v;
  return v < -kMost ? -kMost : v;
}

// One level along `size` elements, of which a column of neighbours is `width` long: rows of a matrix where
// width > 1.
template <int kTaps>
inline void wavelet_analyze(const WaveletRun &run, const float *v, size_t size, size_t width, float *a,
                            float *d) {
  const size_t half = size / 2;
  float low[kTaps], high[kTaps];
  for (int k = 0; k < kTaps; ++k) {
    low[k] = run.filter[k];
    high[k] = k % 2 ? run.filter[kTaps - 1 - k] : -run.filter[kTaps - 1 - k];
  }
  // Coefficients i for which 2 i + kTaps / 2 - k stays within the band for all taps.
  const size_t first = size < kTaps ? half : kTaps / 4, last = size < kTaps ? half : half - kTaps / 4;
  auto around = [&](size_t i) {
    for (size_t j = 0; j < width; ++j) {
      float x = 0, y = 0;
      for (int k = 0; k < kTaps; ++k) {
        const float e = v[(2 * i + kTaps / 2 + size * kTaps - static_cast<size_t>(k)) % size * width + j];
        x = k ? x + low[k] * e : low[k] * e;
        y = k ? y + high[k] * e : high[k] * e;
      }
      a[i * width + j] = wavelet_bound(x, run.finite);
      d[i * width + j] = wavelet_bound(y, run.finite);
    }
  };
  auto inside = [&](size_t begin, size_t end, bool finite) {
    for (size_t i = begin; i < end; ++i) {
      const float *top = v + (2 * i + kTaps / 2) * width;
      for (size_t j = 0; j < width; ++j) {
        float x = low[0] * top[j], y = high[0] * top[j];
        for (int k = 1; k < kTaps; ++k) {
          const float e = top[j - static_cast<size_t>(k) * width];
          x += low[k] * e;
          y += high[k] * e;
        }
        a[i * width + j] = wavelet_bound(x, finite);
        d[i * width + j] = wavelet_bound(y, finite);
      }
    }
  };
  size_t i = 0;
  for (; i < half && i < first; ++i) around(i);
  if (width == 1) {
    const float *top = v + kTaps / 2;
    auto plain = [&](bool finite) {
      for (; i < last; ++i) {
        float x = low[0] * top[2 * i], y = high[0] * top[2 * i];
        for (int k = 1; k < kTaps; ++k) {
          x += low[k] * top[2 * i - k];
          y += high[k] * top[2 * i - k];
        }
        a[i] = wavelet_bound(x, finite);
        d[i] = wavelet_bound(y, finite);
      }
    };
    run.finite ? plain(true) : plain(false);
  } else if (i < last) {
    run.finite ? inside(i, last, true) : inside(i, last, false);
    i = last;
  }
  for (; i < half; ++i) around(i);
}

template <int kTaps>
inline void wavelet_synthesize(const WaveletRun &run, const float *a, const float *d, size_t half,
                               size_t width, float *v) {
  float low[kTaps], high[kTaps];
  for (int k = 0; k < kTaps; ++k) {
    low[k] = run.filter[k];
    high[k] = k % 2 ? run.filter[kTaps - 1 - k] : -run.filter[kTaps - 1 - k];
  }
  for (int parity = 0; parity < 2; ++parity) {
    const int odd = (kTaps / 2 + parity) % 2;
    // Of tap k: coefficient i + (parity - kTaps / 2 + k) / 2, around.
    auto shift = [&](int k) { return (parity - kTaps / 2 + k) / 2; };
    auto one = [&](size_t i, size_t j, bool wraps, bool finite) {
      float total = 0;
      for (int k = odd; k < kTaps; k += 2) {
        size_t at = i + static_cast<size_t>(static_cast<ptrdiff_t>(shift(k)));
        if (wraps) at = (i + half * kTaps + static_cast<size_t>(static_cast<ptrdiff_t>(shift(k)))) % half;
        const float part = low[k] * a[at * width + j] + high[k] * d[at * width + j];
        total = k == odd ? part : total + part;
      }
      v[(2 * i + static_cast<size_t>(parity)) * width + j] = wavelet_bound(total, finite);
    };
    const size_t edge = kTaps / 4 + 1;
    const size_t first = half <= 2 * edge ? half : (kTaps == 2 ? 0 : edge);
    const size_t last = half <= 2 * edge ? half : (kTaps == 2 ? half : half - edge);
    for (size_t i = 0; i < first; ++i)
      for (size_t j = 0; j < width; ++j) one(i, j, true, run.finite);
    auto inside = [&](bool finite) {
      if (width == 1) {
        for (size_t i = first; i < last; ++i) one(i, 0, false, finite);
      } else {
        for (size_t i = first; i < last; ++i)
          for (size_t j = 0; j < width; ++j) one(i, j, false, finite);
      }
    };
    run.finite ? inside(true) : inside(false);
    for (size_t i = last; i < half; ++i)
      for (size_t j = 0; j < width; ++j) one(i, j, true, run.finite);
  }
}

// Haar's two taps need no neighbours, so several levels of a piece stay in the cache.
template <bool kFinite>
inline void store_bounded(float *p, Float8 *v) {
  constexpr float kMost = 3.40282346638528859812e+38F;
  if (kFinite) {
    const Float8 most = {kMost, kMost, kMost, kMost, kMost, kMost, kMost, kMost};
    *v = *v > most ? most : *v;
    *v = *v < -most ? -most : *v;
  }
  store_vector(p, *v);
}

template <bool kFinite>
inline void haar_analyze(const float *v, size_t half, float h, float *a, float *d) {
  size_t i = 0;
  for (; i + 8 <= half; i += 8) {
    Float8 p, q;
    load_vector(v + 2 * i, &p);
    load_vector(v + 2 * i + 8, &q);
    const Float8 x = h * __builtin_shuffle(p, q, Int8{0, 2, 4, 6, 8, 10, 12, 14});
    const Float8 y = h * __builtin_shuffle(p, q, Int8{1, 3, 5, 7, 9, 11, 13, 15});
    Float8 sum = y + x, difference = x - y;
    store_bounded<kFinite>(a + i, &sum);
    store_bounded<kFinite>(d + i, &difference);
  }
  for (; i < half; ++i) {
    const float x = h * v[2 * i], y = h * v[2 * i + 1];
    a[i] = wavelet_bound(y + x, kFinite);
    d[i] = wavelet_bound(x - y, kFinite);
  }
}

template <bool kFinite>
inline void haar_synthesize(const float *a, const float *d, size_t half, float h, float *v) {
  size_t i = 0;
  for (; i + 8 <= half; i += 8) {
    Float8 x, y;
    load_vector(a + i, &x);
    load_vector(d + i, &y);
    x *= h;
    y *= h;
    const Float8 even = x + y, odd = x - y;
    Float8 first = __builtin_shuffle(even, odd, Int8{0, 8, 1, 9, 2, 10, 3, 11});
    Float8 second = __builtin_shuffle(even, odd, Int8{4, 12, 5, 13, 6, 14, 7, 15});
    store_bounded<kFinite>(v + 2 * i, &first);
    store_bounded<kFinite>(v + 2 * i + 8, &second);
  }
  for (; i < half; ++i) {
    const float x = h * a[i], y = h * d[i];
    v[2 * i] = wavelet_bound(x + y, kFinite);
    v[2 * i + 1] = wavelet_bound(x - y, kFinite);
  }
}

template <bool kFinite>
inline void haar(const WaveletRun &run, size_t count) {
  constexpr size_t kPiece = 8192;  // elements, 32 KiB; a multiple of 2^(most levels)
  float buffers[2][kPiece / 2];
  const float h = run.filter[0];
  const int levels = run.levels;
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t n = count - begin < kPiece ? count - begin : kPiece;
    if (!run.inverse) {
      const float *v = run.x + begin;
      for (int l = 1; l <= levels; ++l) {
        float *a = l == levels ? run.out + (begin >> l) : buffers[l % 2];
        haar_analyze<kFinite>(v, n >> l, h, a, run.out + (count >> l) + (begin >> l));
        v = a;
      }
    } else {
      const float *a = run.x + (begin >> levels);
      for (int l = levels; l >= 1; --l) {
        float *v = l == 1 ? run.out + begin : buffers[l % 2];
        haar_synthesize<kFinite>(a, run.x + (count >> l) + (begin >> l), n >> l, h, v);
        a = v;
      }
    }
  }
}

template <int kTaps>
inline void wavelet_line(const WaveletRun &run, size_t count) {
  const std::unique_ptr<float[]> scratch(new float[count]);
  float *low[2] = {scratch.get(), scratch.get() + count / 2};  // bands on their way, in turns
  if (!run.inverse) {
    const float *v = run.x;
    for (int l = 1; l <= run.levels; ++l) {
      float *a = l == run.levels ? run.out : low[l % 2];
      wavelet_analyze<kTaps>(run, v, count >> (l - 1), 1, a, run.out + (count >> l));
      v = a;
    }
  } else {
    const float *a = run.x;
    for (int l = run.levels; l >= 1; --l) {
      float *v = l == 1 ? run.out : low[l % 2];
      wavelet_synthesize<kTaps>(run, a, run.x + (count >> l), count >> l, 1, v);
      a = v;
    }
  }
}

// Each level goes along the rows into two halves, then along the columns of both.
template <int kTaps>
inline void wavelet_matrix(const WaveletRun &run, size_t rows, size_t width) {
  const size_t area = rows * width, all = run.n / run.columns;
  const std::unique_ptr<float[]> scratch(new float[2 * area]);
  float *square = scratch.get(), *low = square + area, *high = low + area / 2;
  size_t at = area;  // where in the coefficients the next level's details end or begin
  if (!run.inverse) {
    for (size_t i = 0; i < rows; ++i)
      memcpy(square + i * width, run.x + i * run.columns, width * sizeof(float));
    size_t m = rows, w = width;
    for (int l = 0; l < run.levels; ++l, m /= 2, w /= 2) {
      for (size_t i = 0; i < m; ++i)
        wavelet_analyze<kTaps>(run, square + i * w, w, 1, low + i * (w / 2), high + i * (w / 2));
      const size_t band = m / 2 * (w / 2);
      at -= 3 * band;
      wavelet_analyze<kTaps>(run, low, m, w / 2, square, run.out + at);
      wavelet_analyze<kTaps>(run, high, m, w / 2, run.out + at + band, run.out + at + 2 * band);
    }
    memcpy(run.out, square, at * sizeof(float));
    float *rest = run.out + area;
    for (size_t i = 0; i < rows; ++i, rest += run.columns - width)
      memcpy(rest, run.x + i * run.columns + width, (run.columns - width) * sizeof(float));
    memcpy(rest, run.x + rows * run.columns, (all - rows) * run.columns * sizeof(float));
  } else {
    size_t m = rows >> run.levels, w = width >> run.levels;
    at = m * w;
    memcpy(square, run.x, at * sizeof(float));
    for (int l = 0; l < run.levels; ++l, m *= 2, w *= 2) {
      const size_t band = m * w;
      wavelet_synthesize<kTaps>(run, square, run.x + at, m, w, low);
      wavelet_synthesize<kTaps>(run, run.x + at + band, run.x + at + 2 * band, m, w, high);
      for (size_t i = 0; i < 2 * m; ++i)
        wavelet_synthesize<kTaps>(run, low + i * w, high + i * w, w, 1, square + i * 2 * w);
      at += 3 * band;
    }
    for (size_t i = 0; i < rows; ++i)
      memcpy(run.out + i * run.columns, square + i * width, width * sizeof(float));
    const float *rest = run.x + area;
    for (size_t i = 0; i < rows; ++i, rest += run.columns - width)
      memcpy(run.out + i * run.columns + width, rest, (run.columns - width) * sizeof(float));
    memcpy(run.out + rows * run.columns, rest, (all - rows) * run.columns * sizeof(float));
  }
}

inline void wavelet(const WaveletRun &run) {
  const auto by_taps = [&](auto line, auto four, auto eight) {
    run.taps == 2 ? line() : run.taps == 4 ? four() : eight();
  };
  if (run.rows) {
    by_taps([&] { wavelet_matrix<2>(run, run.rows, run.width); },
            [&] { wavelet_matrix<4>(run, run.rows, run.width); },
            [&] { wavelet_matrix<8>(run, run.rows, run.width); });
    return;
  }
  by_taps([&] { run.finite ? haar<true>(run, run.width) : haar<false>(run, run.width); },
          [&] { wavelet_line<4>(run, run.width); }, [&] { wavelet_line<8>(run, run.width); });
  if (run.n > run.width) memcpy(run.out + run.width, run.x + run.width, (run.n - run.width) * sizeof(float));
}
