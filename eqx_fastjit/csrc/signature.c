/* Trails: their hash, and when two are the same.

A trail has no ambiguity: each value is one entry, or begins with its type, and what follows
tells which of its readers has read it. So two calls whose trails have the same entries have the
same statics by the contract, and the same structure. */

#include "fastjit.h"

static inline int is_number(const Entry *entry) {
    return entry->kind == INT || entry->kind == FLOAT;
}

uint64_t trail_hash(const Entry *trail, size_t n) {
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t part = trail[i].kind;

        /* Of what is compared by `==`, the hash stands before it. A `str` keeps its own. */
        if (trail[i].kind == TEXT)
            part ^= (uint64_t)PyObject_Hash(trail[i].as.object) << 3;
        else if (is_number(&trail[i]))
            part ^= number_bits(trail[i].kind, trail[i].as.object);
        else if (trail[i].kind != EQUAL)
            part ^= trail[i].as.bits;

        hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

static inline int by_equality(const Entry *entry) {
    return entry->kind == EQUAL || entry->kind == TEXT;
}

/* Whether entries differ in their kinds, or in what is compared without Python. */
static int differ(const Entry *a, const Entry *b) {
    if (a->kind != b->kind) return 1;
    if (a->as.bits == b->as.bits || by_equality(a)) return 0;
    if (!is_number(a)) return 1;
    return number_bits(a->kind, a->as.object) != number_bits(b->kind, b->as.object);
}

/* `==` may run any Python, so the caller owns both. */
int trail_equal(const Entry *a, size_t n_a, const Entry *b, size_t n_b) {
    if (n_a != n_b) return 0;
    if (trail_identical(a, b, n_a)) return 1;

    /* What is cheap first: most trails that differ do so in a number or an object. */
    for (size_t i = 0; i < n_a; i++)
        if (differ(&a[i], &b[i])) return 0;

    for (size_t i = 0; i < n_a; i++) {
        if (!by_equality(&a[i])) continue;
        int same = PyObject_RichCompareBool(a[i].as.object, b[i].as.object, Py_EQ);
        if (same <= 0) return same;
    }
    return 1;
}
