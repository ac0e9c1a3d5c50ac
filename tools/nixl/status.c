/* SPDX-License-Identifier: Apache-2.0 */
/* wherry nixl status: what is installed where, for people and for programs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "nixl/nixl.h"
#include "output.h"

static const char *const words[] = {
	[NIXL_ABSENT] = "not installed", [NIXL_GONE] = "gone",
	[NIXL_FOREIGN] = "not Wherry's", [NIXL_CHANGED] = "changed",
	[NIXL_OUTDATED] = "out of date", [NIXL_INSTALLED] = "installed",
};

struct row {
	const struct nixl_place *place;
	struct nixl_found found;
	bool known; /* NIXL's version; true for a folder */
	bool upgraded; /* NIXL, since the plug-in was installed */
};

static int row_fill(const struct nixl_place *place, const struct nixl_plugin *plugin,
		    struct row *out)
{
	const char *version = place->wheel ? place->wheel->version : "";
	int error = nixl_place_look(place, plugin, &out->found);

	if (error)
		return fail(error, "cannot read %s/%s: %s", place->folder, place->file,
			    strerror(-error));
	out->place = place;
	out->known = !place->wheel || wh_nixl_version_is_known(version);
	out->upgraded = *version && *out->found.nixl && strcmp(version, out->found.nixl) != 0;
	return 0;
}

/* Is there nothing to do? */
static bool row_is_good(const struct row *row)
{
	return row->found.state == NIXL_INSTALLED && row->known && !row->upgraded;
}

/* What to do about it, as one line. */
static void row_advise(const struct row *row, const struct nixl_plugin *plugin)
{
	const struct nixl_place *place = row->place;
	const char *nixl = place->wheel ? place->wheel->version : "";
	char known[WH_NIXL_VERSION];

	if (place->wheel && !*nixl)
		note("%s was removed from %s, and Wherry's plug-in may be left in its folder; "
		     "wherry nixl remove takes it away",
		     place->wheel->name, place->wheel->site);
	else if (!row->known)
		note("NIXL %s is not known to Wherry %s, whose plug-in is for NIXL %s", nixl,
		     plugin->version, wh_nixl_versions(known));
	else if (row->found.state == NIXL_FOREIGN)
		note("%s/%s is not Wherry's", place->folder, place->file);
	else if (row->found.state == NIXL_CHANGED)
		note("%s/%s is not as wherry nixl install wrote it; wherry nixl install writes it "
		     "anew",
		     place->folder, place->file);
	else if (row->upgraded)
		note("NIXL was %s when the plug-in was installed, and is %s%s; run wherry nixl "
		     "install again",
		     row->found.nixl, nixl,
		     row->found.state == NIXL_GONE ? ", and the plug-in has gone" : "");
	else if (row->found.state == NIXL_GONE)
		note("%s/%s was installed and has gone; run wherry nixl install again",
		     place->folder, place->file);
	else if (row->found.state == NIXL_OUTDATED)
		note("%s/%s is of Wherry %s, and this is %s; run wherry nixl install again",
		     place->folder, place->file, row->found.version, plugin->version);
	else
		note("%s has no plug-in of Wherry; wherry nixl install%s puts it there",
		     place->folder, place->as_ucx ? " --as-ucx" : "");
}

static void row_print(const struct row *row)
{
	const struct nixl_place *place = row->place;

	if (place->wheel)
		printf("NIXL %s (%s)", *place->wheel->version ? place->wheel->version : "removed",
		       place->wheel->name);
	else
		printf("%s", place->as_ucx ? "as UCX" : "folder");
	printf(": %s", words[row->found.state]);
	if (*row->found.version)
		printf(", Wherry %s", row->found.version);
	printf("%s\n  %s/%s\n", row->upgraded ? ", for another NIXL" : "", place->folder,
	       place->file);
}

static json_t *row_json(const struct row *row)
{
	const struct nixl_wheel *wheel = row->place->wheel;
	char file[PATH_MAX + 32];

	snprintf(file, sizeof(file), "%s/%s", row->place->folder, row->place->file);
	return json_pack("{s:s, s:o, s:o, s:b, s:o, s:b, s:o, s:s, s:o, s:b}", "place",
			 wheel              ? "wheel" :
			 row->place->as_ucx ? "as_ucx" :
					      "folder",
			 "wheel", output_text(wheel ? wheel->name : NULL), "nixl",
			 output_text(wheel ? wheel->version : NULL), "known", row->known,
			 "nixl_recorded", output_text(row->found.nixl), "upgraded", row->upgraded,
			 "file", output_text(file), "state", words[row->found.state], "plugin",
			 output_text(row->found.version), "good", row_is_good(row));
}

int nixl_status(const struct nixl_place *places, unsigned count, const char *python,
		const struct nixl_plugin *plugin, bool json)
{
	json_t *object = output_new(), *list = json_array();
	int code = EXIT_PASS;

	for (unsigned i = 0; i < count; i++) {
		struct row row;

		if (row_fill(&places[i], plugin, &row)) {
			code = EXIT_FAIL;
			continue;
		}
		if (json)
			json_array_append_new(list, row_json(&row));
		else
			row_print(&row);
		if (row_is_good(&row))
			continue;
		row_advise(&row, plugin);
		code = code ? code : EXIT_WARNING;
	}
	json_object_set_new(object, "python", output_text(python));
	json_object_set_new(object, "plugin",
			    json_pack("{s:o, s:s}", "file", output_text(plugin->path), "version",
				      plugin->version));
	json_object_set_new(object, "places", list);
	if (!json) {
		json_decref(object);
		return code;
	}
	return output_print(object) ? EXIT_FAIL : code;
}
