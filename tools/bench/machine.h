/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that a result was measured on, as JSON; for wherry bench and the programs in bench/.
 */
#ifndef TOOLS_BENCH_MACHINE_H
#define TOOLS_BENCH_MACHINE_H

#include <jansson.h>

/* A new object with the date, this build, the machine, its memory and its TCP settings. A value
 * that the machine does not have is null. */
json_t *machine_describe(void);
/* The same, with the load, the limit of open files, and `config`: settings "name=value", ended by
 * NULL, of which keys are left out. Of the registry's URL (NULL: none) the scheme alone: the rest
 * may hold a password. */
json_t *machine_describe_run(const char *registry, const char *const *config);

#endif
