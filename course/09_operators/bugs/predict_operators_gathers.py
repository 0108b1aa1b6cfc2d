"""predict_operators: the gradients are copied"""

launches = 8 * 500
loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)
flat_ms = 1e3 * 9 * 4e9 / 3.35e12
edge = 5e-6 * 3.35e12 / 6
scores_mib = 16 * 8192**2 * 2 / 2**20
ridge_n = 3 * 989e12 / 3.35e12
