/* SPDX-License-Identifier: Apache-2.0 */
/* gdrapi-fixture.h: what the tests of libgdrapi.so.2 share
 *
 * The library and the CUDA driver, opened at run time as programs made for GDRCopy open them, and
 * one allocation for each test. */
#ifndef TESTS_INTEGRATION_WINDOW_GDRAPI_FIXTURE_H
#define TESTS_INTEGRATION_WINDOW_GDRAPI_FIXTURE_H

#include <stdbool.h>

#include "../../unit/unit.h"
#include "gdrapi.h"
#include "nvidia-state.h"

#undef gdr_get_info

#define SIZE ((size_t)1 << 20)
#define PAGE ((uint64_t)65536)
#define KIB ((size_t)1 << 10)

/* What gdr_get_info() fills for programs compiled before gdr_get_info_v2(). */
struct info_v1 {
	uint64_t va, mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned mapped : 1, wc_mapping : 1;
};

#define FUNCTIONS(X)                                                                               \
	X(gdr_t, gdr_open, (void))                                                                 \
	X(int, gdr_close, (gdr_t))                                                                 \
	X(int, gdr_pin_buffer, (gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *))     \
	X(int, gdr_pin_buffer_v2, (gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *))            \
	X(int, gdr_unpin_buffer, (gdr_t, gdr_mh_t))                                                \
	X(int, gdr_get_callback_flag, (gdr_t, gdr_mh_t, int *))                                    \
	X(int, gdr_get_info, (gdr_t, gdr_mh_t, struct info_v1 *))                                  \
	X(int, gdr_get_info_v2, (gdr_t, gdr_mh_t, gdr_info_v2_t *))                                \
	X(int, gdr_map, (gdr_t, gdr_mh_t, void **, size_t))                                        \
	X(int, gdr_map_v2, (gdr_t, gdr_mh_t, void **, size_t, int))                                \
	X(int, gdr_unmap, (gdr_t, gdr_mh_t, void *, size_t))                                       \
	X(int, gdr_copy_to_mapping, (gdr_mh_t, void *, const void *, size_t))                      \
	X(int, gdr_copy_from_mapping, (gdr_mh_t, void *, const void *, size_t))                    \
	X(void, gdr_runtime_get_version, (int *, int *))                                           \
	X(int, gdr_driver_get_version, (gdr_t, int *, int *))                                      \
	X(int, gdr_get_attribute, (gdr_t, int, int *))                                             \
	X(int, gdr_get_mapping_type_string, (int, const char **))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define MEMBER(type, name, parameters) type(*name) parameters;
struct gdrapi_functions {
	FUNCTIONS(MEMBER)
};

struct cuda_functions {
	void *library;
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*alloc)(uint64_t *, size_t);
	int (*free)(uint64_t);
	char *(*alias)(uint64_t);
};

extern struct gdrapi_functions api;
extern struct cuda_functions cu;
extern const char *backend; /* "rm", "driver", "driver-old" or "dmabuf" */
extern bool shares_pages; /* small allocations lie in the same page */
extern gdr_t gdr; /* of this test */
extern uint64_t memory; /* SIZE bytes on the GPU, of this test */

/* Open both libraries. Usage of the program: NAME [BACKEND]; the environment selects the backend in
 * the library. */
void gdrapi_load(int argc, char **argv);

#define GDRAPI_TEST(name) cmocka_unit_test_setup_teardown(name, gdrapi_begin, gdrapi_end)
int gdrapi_begin(void **state);
int gdrapi_end(void **state);

bool backend_is(const char *name);
/* These three must succeed. */
gdr_mh_t pin_buffer(uint64_t address, size_t size);
void *map_buffer(gdr_mh_t mh, size_t size);
gdr_info_v2_t buffer_info(gdr_mh_t mh);

/* Pin and map the whole pages around a buffer, as UCX does, and copy there and back. The buffer's
 * offset in the mapping is its distance from info.va. The bytes beside the buffer must stay,
 * whatever they belong to. */
void use_pages_around(uint64_t buffer, size_t length);

/* Make three allocations, one behind the other, and free the middle one, of `length`. `whole`: from
 * the first to the end of the last. */
void free_middle(size_t length, uint64_t *first, uint64_t *last, size_t *whole);

#endif
