/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What newer compilers expect of libstdc++ and the libstdc++ that NIXL's wheels ask for
 * (GLIBCXX_3.4.22) does not have: the allocator calls it where a length overflows. Here it is hidden in
 * the plug-in.
 */
#include <new>

namespace std
{

void __throw_bad_array_new_length();

void __throw_bad_array_new_length()
{
	throw bad_alloc();
}

} // namespace std
