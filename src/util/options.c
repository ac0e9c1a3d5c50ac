/* SPDX-License-Identifier: Apache-2.0 */
/* Copying public structs of other versions, by the size that they start with. */
#include "util/options.h"

#include <errno.h>
#include <string.h>

#include "util/error.h"

/* No public struct will be larger. A larger size was never initialised: read nothing. */
#define SIZE_SANE 4096

/* The caller's struct has `size` bytes, ours `known`. */
static int options_check(const void *theirs, size_t size, size_t known, size_t least,
			 const char *what)
{
	const unsigned char *bytes = theirs;

	if (size < least || size < sizeof(size) || size > SIZE_SANE)
		return wh_fail(size > SIZE_SANE ? E2BIG : EINVAL,
			       "%s: the struct's size is %zu: set .size to its sizeof", what, size);
	for (size_t i = known; i < size; i++) {
		if (bytes[i])
			return wh_fail(E2BIG,
				       "%s: the struct sets a field at byte %zu that this "
				       "library does not know: leave it zero",
				       what, i);
	}
	return 0;
}

int wh_options_copy(void *into, size_t into_size, const void *from, size_t least, const char *what)
{
	size_t size = into_size;
	int rc = 0;

	if (from) {
		memcpy(&size, from, sizeof(size));
		rc = options_check(from, size, into_size, least, what);
	}
	if (rc)
		return rc;
	memset(into, 0, into_size);
	if (from)
		memcpy(into, from, size < into_size ? size : into_size);
	memcpy(into, &into_size, sizeof(into_size));
	return 0;
}

int wh_options_return(void *into, const void *from, size_t from_size, const char *what)
{
	size_t size;
	int rc;

	memcpy(&size, into, sizeof(size));
	rc = options_check(into, size, from_size, sizeof(size), what);
	if (rc)
		return rc;
	memcpy((char *)into + sizeof(size), (const char *)from + sizeof(size),
	       (size < from_size ? size : from_size) - sizeof(size));
	return 0;
}
