/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_EXPLAIN_H
#define TOOLS_EXPLAIN_H

#include <stdbool.h>

/* Print what an errno, as a number or a name, means in Wherry and what to try. An exit code. */
int explain_errno(const char *text, bool json);

#endif
