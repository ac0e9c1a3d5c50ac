/* SPDX-License-Identifier: Apache-2.0 */
/* What every fuzz target includes. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Like assert(), in every build. */
#define check(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* What was decoded and is encoded again is the same, but for the text at its end, which is cleaned.
 */
static inline void check_reencoded(const uint8_t *again, size_t length, const char *text,
				   const uint8_t *data, size_t size)
{
	size_t head = length - strlen(text);

	check(wh_text_is_clean(text, strlen(text)));
	check(head <= size && !memcmp(again, data, head));
	if (wh_text_is_clean((const char *)data + head, size - head))
		check(length == size && !memcmp(again, data, size));
}

#endif
