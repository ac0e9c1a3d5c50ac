/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A place for the plug-in: looking, installing, removing. A record beside it says what was put
 * there and for which NIXL. The record of a wheel is in the wheel's folder of packages, because an
 * upgrade may replace the folder of plug-ins.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "command.h"
#include "nixl/nixl.h"
#include "util/crc32c.h"
#include "util/text.h"

/* ---- places ---------------------------------------------------------------------------------- */

void nixl_place_of_wheel(const struct nixl_wheel *wheel, struct nixl_place *out)
{
	memset(out, 0, sizeof(*out));
	out->wheel = wheel;
	/* find.c has checked that it fits. */
	if (snprintf(out->folder, sizeof(out->folder), "%s/.%s.mesonpy.libs/plugins", wheel->site,
		     wheel->name) >= (int)sizeof(out->folder))
		abort();
	snprintf(out->file, sizeof(out->file), "libplugin_WHERRY.so");
	snprintf(out->record, sizeof(out->record), ".%s.wherry.json", wheel->name);
}

void nixl_place_of_folder(const char *folder, bool as_ucx, struct nixl_place *out)
{
	memset(out, 0, sizeof(*out));
	out->as_ucx = as_ucx;
	snprintf(out->folder, sizeof(out->folder), "%s", folder);
	snprintf(out->file, sizeof(out->file), "libplugin_%s.so", as_ucx ? "UCX" : "WHERRY");
	snprintf(out->record, sizeof(out->record), ".%s.wherry.json", as_ucx ? "UCX" : "WHERRY");
}

int nixl_as_ucx_folder(bool root, char out[PATH_MAX])
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

	if (root)
		snprintf(out, PATH_MAX, "/usr/local/lib/wherry/nixl-as-ucx");
	else if (data && *data == '/')
		snprintf(out, PATH_MAX, "%s/wherry/nixl-as-ucx", data);
	else if (home && *home == '/')
		snprintf(out, PATH_MAX, "%s/.local/share/wherry/nixl-as-ucx", home);
	else
		return usage_error("--as-ucx: HOME is not set; name a folder with --directory");
	return 0;
}

/* ---- an open place ----------------------------------------------------------------------------
 */

struct opened {
	int root; /* the folder of the record, which is locked */
	int libraries; /* -1, unless of a wheel */
	int folder; /* of the plug-in; root, unless of a wheel */
};

static void place_close(struct opened *opened)
{
	if (opened->folder >= 0 && opened->folder != opened->root)
		close(opened->folder);
	if (opened->libraries >= 0)
		close(opened->libraries);
	if (opened->root >= 0)
		close(opened->root);
}

/* Open a place to write to it. 0, or a negative errno with `why`. */
static int place_open(const struct nixl_place *place, bool create, struct opened *out,
		      char why[NIXL_WHY])
{
	const char *site = place->wheel ? place->wheel->site : place->folder;
	char name[NIXL_NAME + 32];

	out->libraries = out->folder = -1;
	out->root = nixl_folder_open(site, create && !place->wheel, why);
	if (out->root < 0)
		return out->root;
	if (!place->wheel) {
		out->folder = out->root;
	} else {
		snprintf(name, sizeof(name), ".%s.mesonpy.libs", place->wheel->name);
		out->libraries = nixl_folder_enter(out->root, name, why);
		out->folder = out->libraries;
		if (out->libraries >= 0)
			out->folder = nixl_folder_enter(out->libraries, "plugins", why);
		if (out->folder < 0) {
			int error = out->folder;

			place_close(out);
			return error;
		}
	}
	/* Another `wherry nixl` is waited for. */
	if (flock(out->root, LOCK_EX)) {
		int error = -errno;

		snprintf(why, NIXL_WHY, "cannot lock %.300s: %s", site, strerror(errno));
		place_close(out);
		return error;
	}
	return 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* What a record says. */
struct record {
	bool there, foreign; /* foreign: a file of that name which is no record */
	json_int_t size, crc;
	char nixl[WH_NIXL_VERSION];
};

static uint32_t checksum(const unsigned char *bytes, size_t length)
{
	return wh_crc32c_choose()->sum(0, bytes, length);
}

static int record_read(int folder, const char *name, struct record *out)
{
	unsigned char *text = NULL;
	size_t length = 0;
	const char *nixl = "", *wherry;
	json_t *json;
	int error = nixl_file_read(folder, name, &text, &length);

	memset(out, 0, sizeof(*out));
	if (error == -ENOENT)
		return 0;
	out->foreign = true;
	if (error)
		return error == -ELOOP || error == -EFBIG ? 0 : error;
	json = json_loadb((const char *)text, length, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	if (json && !json_unpack(json, "{s:s, s:s, s:I, s:I}", "wherry", &wherry, "nixl", &nixl,
				 "size_bytes", &out->size, "crc32c", &out->crc)) {
		out->there = true;
		out->foreign = false;
		snprintf(out->nixl, sizeof(out->nixl), "%s", nixl);
		wh_text_clean(out->nixl);
	}
	json_decref(json);
	return 0;
}

static int record_write(int folder, const struct nixl_place *place,
			const struct nixl_plugin *plugin, bool replace)
{
	json_t *json = json_pack("{s:i, s:s, s:s, s:s, s:I, s:I}", "schema", 1, "wherry",
				 plugin->version, "nixl", place->wheel ? place->wheel->version : "",
				 "file", place->file, "size_bytes", (json_int_t)plugin->length,
				 "crc32c", (json_int_t)checksum(plugin->bytes, plugin->length));
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	int error = -ENOMEM;

	if (text)
		error = nixl_file_put(folder, place->record, text, strlen(text), replace);
	free(text);
	json_decref(json);
	return error;
}

/* What is in the folder, and the record. */
struct look {
	struct nixl_found found;
	struct record record;
};

static int place_look(const struct nixl_place *place, int root, int folder,
		      const struct nixl_plugin *plugin, struct look *out)
{
	struct nixl_found *found = &out->found;
	unsigned char *bytes = NULL;
	size_t length = 0;
	bool recorded, current;
	int error = record_read(root, place->record, &out->record);

	memset(found, 0, sizeof(*found));
	if (error)
		return error;
	snprintf(found->nixl, sizeof(found->nixl), "%s", out->record.nixl);
	error = nixl_file_read(folder, place->file, &bytes, &length);
	found->state = out->record.there ? NIXL_GONE : NIXL_ABSENT;
	if (error == -ENOENT)
		return 0;
	found->state = NIXL_FOREIGN;
	if (error == -ELOOP || error == -EFBIG)
		return 0;
	if (error)
		return error;
	if (!nixl_marker_read(bytes, length, found->version)) {
		current = length == plugin->length && !memcmp(bytes, plugin->bytes, length);
		recorded = out->record.there && out->record.size == (json_int_t)length &&
			   out->record.crc == (json_int_t)checksum(bytes, length);
		found->state = current ? NIXL_INSTALLED : recorded ? NIXL_OUTDATED : NIXL_CHANGED;
	}
	free(bytes);
	return 0;
}

int nixl_place_look(const struct nixl_place *place, const struct nixl_plugin *plugin,
		    struct nixl_found *out)
{
	const char *site = place->wheel ? place->wheel->site : place->folder;
	int root = open(site, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int folder = open(place->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int error = root < 0 || folder < 0 ? -errno : 0;
	struct look look;

	memset(&look, 0, sizeof(look));
	if (!error)
		error = place_look(place, root, folder, plugin, &look);
	if (root >= 0)
		close(root);
	if (folder >= 0)
		close(folder);
	if (error && error != -ENOENT)
		return error;
	*out = look.found;
	return 0;
}

/* ---- installing ------------------------------------------------------------------------------ */

static int refuse_foreign(const struct nixl_place *place, const struct look *look)
{
	if (look->record.foreign)
		return fail(EEXIST, "%s/%s is there and is no record of Wherry's; nothing was done",
			    place->wheel ? place->wheel->site : place->folder, place->record);
	if (look->found.state == NIXL_FOREIGN)
		return fail(EEXIST, "%s/%s is there and is not Wherry's; nothing was done",
			    place->folder, place->file);
	return 0;
}

static int install_locked(const struct nixl_place *place, const struct opened *opened,
			  const struct nixl_plugin *plugin)
{
	struct look look;
	int error = place_look(place, opened->root, opened->folder, plugin, &look), code;
	const char *version = place->wheel ? place->wheel->version : "";
	bool current, there;

	if (error)
		return fail(error, "cannot read %s/%s: %s", place->folder, place->file,
			    strerror(-error));
	code = refuse_foreign(place, &look);
	if (code)
		return code;
	there = look.found.state != NIXL_ABSENT && look.found.state != NIXL_GONE;
	current = look.found.state == NIXL_INSTALLED;
	if (!current)
		error = nixl_file_put(opened->folder, place->file, plugin->bytes, plugin->length,
				      there);
	if (error == -EEXIST)
		return fail(error, "%s/%s has appeared meanwhile; nothing was done", place->folder,
			    place->file);
	if (error)
		return fail(error, "cannot write %s/%s: %s", place->folder, place->file,
			    strerror(-error));
	if (!current || !look.record.there || strcmp(look.record.nixl, version) != 0)
		error = record_write(opened->root, place, plugin, look.record.there);
	if (error)
		return fail(error, "%s/%s was written, and its record %s was not: %s",
			    place->folder, place->file, place->record, strerror(-error));
	printf("%s %s/%s: Wherry %s%s%s%s%s%s\n",
	       current ? "already there:" :
	       there   ? "replaced" :
			 "installed",
	       place->folder, place->file, plugin->version, *version ? ", for NIXL " : "", version,
	       place->wheel ? " (" : "", place->wheel ? place->wheel->name : "",
	       place->wheel ? ")" : "");
	return EXIT_PASS;
}

int nixl_place_install(const struct nixl_place *place, const struct nixl_plugin *plugin)
{
	struct opened opened;
	char why[NIXL_WHY];
	int error = place_open(place, true, &opened, why), code;

	if (error)
		return fail(error, "%s; nothing was done", why);
	code = install_locked(place, &opened, plugin);
	place_close(&opened);
	return code;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Remove folders that are empty now: those that a removed wheel left because of the plug-in, and
 * the one of --as-ucx. */
static void remove_folders(const struct nixl_place *place, const struct opened *opened)
{
	char name[NIXL_NAME + 32];

	if (place->wheel && !*place->wheel->version) {
		snprintf(name, sizeof(name), ".%s.mesonpy.libs", place->wheel->name);
		if (!unlinkat(opened->libraries, "plugins", AT_REMOVEDIR))
			unlinkat(opened->root, name, AT_REMOVEDIR);
	} else if (place->as_ucx) {
		rmdir(place->folder);
	}
}

static int remove_locked(const struct nixl_place *place, const struct opened *opened,
			 const struct nixl_plugin *plugin)
{
	struct look look;
	int error = place_look(place, opened->root, opened->folder, plugin, &look);
	bool there;

	if (error)
		return fail(error, "cannot read %s/%s: %s", place->folder, place->file,
			    strerror(-error));
	there = look.found.state != NIXL_ABSENT && look.found.state != NIXL_GONE;
	if (look.found.state == NIXL_FOREIGN)
		return fail(EEXIST, "%s/%s is not Wherry's; it was left alone", place->folder,
			    place->file);
	if (look.found.state == NIXL_CHANGED)
		return fail(EEXIST,
			    "%s/%s is not as wherry nixl install wrote it, and was left alone; "
			    "remove the file yourself if nobody needs it",
			    place->folder, place->file);
	if (there && unlinkat(opened->folder, place->file, 0))
		return fail(errno, "cannot remove %s/%s: %s", place->folder, place->file,
			    strerror(errno));
	if (look.record.there && unlinkat(opened->root, place->record, 0))
		return fail(errno, "cannot remove the record %s of %s: %s", place->record,
			    place->folder, strerror(errno));
	if (there)
		printf("removed %s/%s\n", place->folder, place->file);
	else
		printf("not there: %s/%s\n", place->folder, place->file);
	if (there || look.record.there)
		remove_folders(place, opened);
	return EXIT_PASS;
}

int nixl_place_remove(const struct nixl_place *place, const struct nixl_plugin *plugin)
{
	struct opened opened;
	char why[NIXL_WHY];
	int error = place_open(place, false, &opened, why), code;

	if (error == -ENOENT) {
		printf("not there: %s/%s\n", place->folder, place->file);
		return EXIT_PASS;
	}
	if (error)
		return fail(error, "%s; nothing was done", why);
	code = remove_locked(place, &opened, plugin);
	place_close(&opened);
	return code;
}
