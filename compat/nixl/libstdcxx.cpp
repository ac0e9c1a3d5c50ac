/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What newer compilers expect of libstdc++ and the libstdc++ that NIXL's wheels ask for
 * (GLIBCXX_3.4.22) does not have. Here it is hidden in the plug-in.
 */
#include <cstdio>
#include <cstdlib>
#include <new>

namespace std
{

/* The allocator calls it where a length overflows. */
void __throw_bad_array_new_length();

void __throw_bad_array_new_length()
{
	throw bad_alloc();
}

/* Containers call it where they are used wrongly, with _GLIBCXX_ASSERTIONS. */
__attribute__((noreturn)) void __glibcxx_assert_fail(const char *file, int line,
						     const char *function,
						     const char *condition) noexcept;

void __glibcxx_assert_fail(const char *file, int line, const char *function,
			   const char *condition) noexcept
{
	fprintf(stderr, "wherry: %s:%d: %s: not so: %s\n", file, line, function, condition);
	abort();
}

} // namespace std
