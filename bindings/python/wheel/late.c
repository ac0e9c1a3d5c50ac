/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that the wheel's command opens when it first calls one of their functions; the script
 * `late` writes those functions. A wheel cannot carry them: OpenSSL gets its updates from the
 * system, and the others are large. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct late {
	void *function; /* NULL until the first call */
	const char *library; /* its SONAME */
	const char *package; /* Debian's package of it */
	const char *name;
};

void *wherry_late_find(struct late *late);

/* The function of `late`, which is stored there, too. Ends the process with status 69 if the system
 * does not have it. Threads may be in here together: they find the same. */
void *wherry_late_find(struct late *late)
{
	void *library = dlopen(late->library, RTLD_NOW | RTLD_LOCAL);
	void *function = library ? dlsym(library, late->name) : NULL;

	if (!function) {
		fprintf(stderr,
			"wherry: this needs %s of the system, which Python's wheel does not "
			"carry: %s; install it (Debian, Ubuntu: apt install %s)\n",
			late->library, dlerror(), late->package);
		exit(69);
	}
	__atomic_store_n(&late->function, function, __ATOMIC_RELEASE);
	return function;
}
