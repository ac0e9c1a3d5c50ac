/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Put in front of every source of the library (-include). All of it is compiled with
 * -fvisibility=hidden; what the public headers declare is seen from outside. The headers stay free
 * of annotations, and libwherry.map decides what is exported in the end.
 */
#ifndef WH_EXPORT_H
#define WH_EXPORT_H

#pragma GCC visibility push(default)
#include <wherry/wherry.h>
#pragma GCC visibility pop

#endif
