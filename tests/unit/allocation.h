/* SPDX-License-Identifier: Apache-2.0 */
/* allocation.h: lets an allocation of this thread fail, inside the library as well: meson.build
 * links what includes this with --wrap */
#ifndef TESTS_UNIT_ALLOCATION_H
#define TESTS_UNIT_ALLOCATION_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

/* Until one fails: 1, the next one does; 0: none. */
static _Thread_local unsigned allocation_fails;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);

static bool allocation_is_refused(void)
{
	if (!allocation_fails || --allocation_fails)
		return false;
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t size)
{
	return allocation_is_refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	return allocation_is_refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *block, size_t size)
{
	return allocation_is_refused() ? NULL : __real_realloc(block, size);
}

/* The first allocation of `call` fails, then the second one instead, and so on until none is left
 * to fail: `call` returns -ENOMEM each time. Gives its value when nothing failed. */
#define WITHOUT_MEMORY(least, call)                                                                \
	({                                                                                         \
		int without_value = -ENOMEM;                                                       \
		unsigned without_nth = 0;                                                          \
                                                                                                   \
		do {                                                                               \
			assert_int_equal(without_value, -ENOMEM);                                  \
			allocation_fails = ++without_nth;                                          \
			without_value = (call);                                                    \
		} while (!allocation_fails);                                                       \
		allocation_fails = 0;                                                              \
		assert_true(without_nth > (least));                                                \
		without_value;                                                                     \
	})

#endif
