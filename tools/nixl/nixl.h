/* SPDX-License-Identifier: Apache-2.0 */
/* wherry nixl: the plug-in for NIXL, put where NIXL looks for it, and taken back. */
#ifndef TOOLS_NIXL_NIXL_H
#define TOOLS_NIXL_NIXL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "compat/nixl/version.h"

#define NIXL_NAME 64 /* room for the name of a wheel, "nixl_cu12", with its NUL */

/* ---- finding NIXL (find.c) -------------------------------------------------------------------
 */

/* A wheel of NIXL, or what its removal has left. */
struct nixl_wheel {
	char name[NIXL_NAME]; /* "nixl_cu12" */
	char version[WH_NIXL_VERSION]; /* "": it was removed, and this is what is left */
	char site[PATH_MAX]; /* the folder of packages that it is in */
};

#define NIXL_WHEELS 16
#define NIXL_SITES 32

struct nixl_search {
	char python[PATH_MAX]; /* whose packages these are, for messages */
	unsigned site_count, wheel_count;
	char sites[NIXL_SITES][PATH_MAX];
	struct nixl_wheel wheels[NIXL_WHEELS];
};

/* Find the wheels of NIXL among the packages of an interpreter, without running it: by its path,
 * pyvenv.cfg and the folders beside it. `python` is an interpreter or the folder of a virtual
 * environment; NULL: that of the Python package this command belongs to, else $VIRTUAL_ENV, else
 * the first python3 of PATH. Neither of the last two, and no user's packages, if `root`. 0, also if
 * there is no NIXL; else an exit code, after a line on stderr if `say`. */
int nixl_find(const char *python, bool root, bool say, struct nixl_search *out);

/* ---- folders and files (folder.c) ------------------------------------------------------------
 */

/* Open the folder `path`, and make what is missing of it if `create`. Every folder on the way, and
 * every symbolic link, must belong to root or the caller, and nobody else may write there (save in
 * a folder like /tmp, where only owners rename); in the last folder nobody at all. A descriptor, or
 * a negative errno with `why`. -ENOENT and -ENOTDIR: there is no such folder. */
#define NIXL_WHY 512
int nixl_folder_open(const char *path, bool create, char why[NIXL_WHY]);

/* As nixl_folder_open(), for a folder in an open one, which must not be a symbolic link. */
int nixl_folder_enter(int folder, const char *name, char why[NIXL_WHY]);

/* Read a regular file whole; a symbolic link is none. *out is to be freed. 0, -ENOENT, -ELOOP (not
 * a regular file), -EFBIG (more than 64 MiB), or another negative errno. */
int nixl_file_read(int folder, const char *name, unsigned char **out, size_t *length);

/* Put a file in place: written beside it, flushed, and renamed. `replace`: over the file that is
 * there; else -EEXIST if there is one. The folder must be locked (flock): what an interrupted one
 * has left is removed. 0 or a negative errno. */
int nixl_file_put(int folder, const char *name, const void *bytes, size_t length, bool replace);

/* ---- the plug-in (plugin.c) ------------------------------------------------------------------
 */

struct nixl_plugin {
	char path[PATH_MAX];
	char version[WH_NIXL_VERSION];
	unsigned char *bytes;
	size_t length;
};

/* Read the plug-in that came with this command; free bytes. 0, or an exit code after a line on
 * stderr. */
int nixl_plugin_load(struct nixl_plugin *out);

/* The version in the plug-in's note, of bytes from outside. 0, or -ENOENT: it is not Wherry's. */
int nixl_marker_read(const unsigned char *bytes, size_t length, char out[WH_NIXL_VERSION]);

/* ---- where it is put (place.c) ---------------------------------------------------------------
 */

/* A place for the plug-in: a wheel's folder of plug-ins, or one for NIXL_PLUGIN_DIR. */
struct nixl_place {
	const struct nixl_wheel *wheel; /* NULL: a folder */
	bool as_ucx;
	char folder[PATH_MAX];
	char file[32]; /* "libplugin_WHERRY.so" */
	char record[NIXL_NAME + 32]; /* the name of the record, in the folder or the wheel's site */
};

void nixl_place_of_wheel(const struct nixl_wheel *wheel, struct nixl_place *out);
void nixl_place_of_folder(const char *folder, bool as_ucx, struct nixl_place *out);

/* The folder of --as-ucx, if no other is named. 0, or an exit code after a line on stderr. */
int nixl_as_ucx_folder(bool root, char out[PATH_MAX]);

enum nixl_state {
	NIXL_ABSENT, /* no file of that name */
	NIXL_GONE, /* the same, but it was installed: its folder was replaced */
	NIXL_FOREIGN, /* a file, and not Wherry's */
	NIXL_CHANGED, /* Wherry's, but not as it was installed */
	NIXL_OUTDATED, /* installed, and not the plug-in of this command */
	NIXL_INSTALLED,
};

/* What is in a place. */
struct nixl_found {
	enum nixl_state state;
	char version[WH_NIXL_VERSION]; /* of the plug-in there; "": none of Wherry's */
	char nixl[WH_NIXL_VERSION]; /* NIXL's version when it was installed; "": not known */
};

/* Look at a place. 0 or a negative errno. */
int nixl_place_look(const struct nixl_place *place, const struct nixl_plugin *plugin,
		    struct nixl_found *out);

/* Install and remove: exit codes, after lines on stdout, and on stderr for what failed. */
int nixl_place_install(const struct nixl_place *place, const struct nixl_plugin *plugin);
int nixl_place_remove(const struct nixl_place *place, const struct nixl_plugin *plugin);

/* ---- reporting (status.c) --------------------------------------------------------------------
 */

/* Print what is in the places, on which `python` is a comment. Exit codes: EXIT_PASS if the plug-in
 * is installed in all of them and current, EXIT_WARNING if not. */
int nixl_status(const struct nixl_place *places, unsigned count, const char *python,
		const struct nixl_plugin *plugin, bool json);

#endif
