/* SPDX-License-Identifier: Apache-2.0 */
/* wherry nixl: the command line. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nixl/nixl.h"
#include "program.h"

struct choices {
	const char *python, *directory;
	bool as_ucx, json;
	bool root; /* who runs this */
};

/* What is worked on, and why nothing was found. */
struct work {
	struct choices choices;
	struct nixl_search search;
	struct nixl_place places[NIXL_WHEELS + 1];
	unsigned count;
	struct nixl_plugin plugin;
};

/* ---- choosing places ------------------------------------------------------------------------- */

/* A wheel that was removed is of interest as long as the plug-in is there. */
static bool wheel_counts(struct work *work, const struct nixl_place *place)
{
	struct nixl_found found;

	return *place->wheel->version || nixl_place_look(place, &work->plugin, &found) ||
	       found.state != NIXL_ABSENT;
}

static int none_found(const struct nixl_search *search)
{
	char sites[512] = "";
	size_t used = 0;

	for (unsigned i = 0; i < search->site_count && used < sizeof(sites); i++)
		used += (size_t)snprintf(sites + used, sizeof(sites) - used, "%s%s", i ? ", " : "",
					 search->sites[i]);
	return fail(ENODEV,
		    "no NIXL among the packages of %s (looked in: %s); install nixl-cu12 or "
		    "nixl-cu13 there, or name another interpreter with --python",
		    search->python, *sites ? sites : "nothing, there are no packages");
}

static int choose_wheels(struct work *work)
{
	int code = nixl_find(work->choices.python, work->choices.root, true, &work->search);

	for (unsigned i = 0; !code && i < work->search.wheel_count; i++) {
		nixl_place_of_wheel(&work->search.wheels[i], &work->places[work->count]);
		work->count += wheel_counts(work, &work->places[work->count]);
	}
	return code;
}

static int choose_folder(struct work *work)
{
	char folder[PATH_MAX];
	int code = 0;

	if (work->choices.directory)
		snprintf(folder, sizeof(folder), "%s", work->choices.directory);
	else
		code = nixl_as_ucx_folder(work->choices.root, folder);
	if (!code)
		nixl_place_of_folder(folder, work->choices.as_ucx, &work->places[work->count++]);
	return code;
}

static int choose(struct work *work)
{
	return work->choices.as_ucx || work->choices.directory ? choose_folder(work) :
								 choose_wheels(work);
}

/* ---- installing ------------------------------------------------------------------------------ */

static int check_version(const struct work *work, const struct nixl_wheel *wheel)
{
	char known[WH_NIXL_VERSION];

	if (!*wheel->version)
		return fail(ENODEV, "%s in %s is incomplete: it has no %s-VERSION.dist-info",
			    wheel->name, wheel->site, wheel->name);
	if (!wh_nixl_version_is_known(wheel->version))
		return fail(EPROTONOSUPPORT,
			    "NIXL %s (%s in %s) is not known: the plug-in of Wherry %s is for NIXL "
			    "%s; update Wherry, or take one of these",
			    wheel->version, wheel->name, wheel->site, work->plugin.version,
			    wh_nixl_versions(known));
	return 0;
}

static int is_other(const struct dirent *entry)
{
	const char *name = entry->d_name + strlen("libplugin_");

	return !strncmp(entry->d_name, "libplugin_", strlen("libplugin_")) && strstr(name, ".so") &&
	       strncmp(name, "UCX.", 4) != 0 && strncmp(name, "WHERRY.", 7) != 0;
}

/* The plug-ins of a wheel that are not in a folder which takes the place of its own: "GDS, POSIX".
 */
static void list_others(const struct nixl_wheel *wheel, char *out, size_t size)
{
	struct nixl_place place;
	struct dirent **entries;
	size_t used = 0;
	int count;

	nixl_place_of_wheel(wheel, &place);
	count = scandir(place.folder, &entries, is_other, alphasort);
	for (int i = 0; i < count; i++) {
		const char *name = entries[i]->d_name + strlen("libplugin_");
		int length = (int)(strstr(name, ".so") - name);

		if (used + (size_t)length + 3 < size)
			used += (size_t)snprintf(out + used, size - used, "%s%.*s",
						 used ? ", " : "", length, name);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
}

/* `path` for a shell. */
static void print_quoted(const char *path)
{
	putchar('\'');
	for (; *path; path++)
		if (*path == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*path);
	putchar('\'');
}

/* The options that name the same place again. */
static void print_options(const struct choices *choices)
{
	if (choices->as_ucx)
		fputs(" --as-ucx", stdout);
	if (choices->directory || choices->python) {
		fputs(choices->directory ? " --directory " : " --python ", stdout);
		print_quoted(choices->directory ? choices->directory : choices->python);
	}
}

/* How it is used, checked and taken back. */
static void explain(const struct work *work)
{
	const struct choices *choices = &work->choices;
	char others[256] = "GDS, POSIX and others";

	if (choices->as_ucx || choices->directory) {
		if (work->search.wheel_count)
			list_others(&work->search.wheels[0], others, sizeof(others));
		fputs("Use it:   export NIXL_PLUGIN_DIR=", stdout);
		print_quoted(work->places[0].folder);
		printf("\n          NIXL then does not find its own plug-ins (%s)\n", others);
	}
	if (choices->as_ucx)
		puts("          Set it on both sides: with NIXL's own UCX on the other one, both "
		     "report an error");
	else
		printf("%sname the backend WHERRY where the program configures NIXL\n",
		       choices->directory ? "          and " : "Use it:   ");
	fputs("Check it: wherry nixl status", stdout);
	print_options(choices);
	fputs("; wherry top shows the routes of its transfers\nUndo it:  wherry nixl remove",
	      stdout);
	print_options(choices);
	puts(choices->root ? " --allow-root" : "");
}

static int install(struct work *work)
{
	int worst = 0;

	if (work->choices.as_ucx) {
		/* What NIXL there is must be known, and its other plug-ins are named; there may be
		 * none, unless an interpreter was named. */
		int code = nixl_find(work->choices.python, work->choices.root, work->choices.python,
				     &work->search);

		if (code && work->choices.python)
			return code;
		for (unsigned i = 0; i < work->search.wheel_count; i++)
			if (*work->search.wheels[i].version &&
			    (code = check_version(work, &work->search.wheels[i])))
				return code;
	}
	for (unsigned i = 0; i < work->count; i++) {
		const struct nixl_place *place = &work->places[i];
		int code = place->wheel ? check_version(work, place->wheel) : 0;

		if (!code)
			code = nixl_place_install(place, &work->plugin);
		worst = worst ? worst : code;
	}
	if (!worst)
		explain(work);
	return worst;
}

static int take_back(struct work *work)
{
	int worst = 0;

	for (unsigned i = 0; i < work->count; i++) {
		int code = nixl_place_remove(&work->places[i], &work->plugin);

		worst = worst ? worst : code;
	}
	/* The folder above the one of --as-ucx was made for it. */
	if (!worst && work->choices.as_ucx && !work->choices.directory) {
		*strrchr(work->places[0].folder, '/') = 0;
		rmdir(work->places[0].folder);
	}
	return worst;
}

static int status(struct work *work)
{
	struct nixl_place *place = &work->places[work->count];
	struct nixl_found found;
	char folder[PATH_MAX];

	/* The one under the name UCX is shown, too, if it is there. */
	if (!work->choices.as_ucx && !work->choices.directory && getenv("HOME") &&
	    !nixl_as_ucx_folder(work->choices.root, folder)) {
		nixl_place_of_folder(folder, true, place);
		if (!nixl_place_look(place, &work->plugin, &found) && found.state != NIXL_ABSENT)
			work->count++;
	}
	return nixl_status(work->places, work->count, work->search.python, &work->plugin,
			   work->choices.json);
}

/* ---- the command line ------------------------------------------------------------------------ */

static const struct subcommand {
	const char *name;
	int (*run)(struct work *work);
	bool writes;
} subcommands[] = {
	{ "install", install, true },
	{ "remove", take_back, true },
	{ "status", status, false },
};

static int choices_parse(const struct arguments *arguments, const struct subcommand *subcommand,
			 struct choices *out)
{
	out->python = argument(arguments, "python");
	out->directory = argument(arguments, "directory");
	out->as_ucx = argument(arguments, "as-ucx");
	out->json = argument(arguments, "json");
	out->root = !geteuid();
	if (out->json && subcommand->writes)
		return usage_error("--json works with wherry nixl status only");
	if (out->python && out->directory && !out->as_ucx)
		return usage_error("--python and --directory exclude each other: one says where "
				   "NIXL is, the other where the plug-in goes");
	if ((out->python && !*out->python) || (out->directory && !*out->directory))
		return usage_error("--python and --directory want a path");
	if (subcommand->writes && out->root && !argument(arguments, "allow-root"))
		return usage_error("you are root: with --allow-root this changes files for "
				   "everybody who uses this Python or folder");
	return 0;
}

static int nixl_run(const struct arguments *arguments)
{
	const struct subcommand *subcommand = subcommands;
	int code = check_subcommand(arguments);
	struct work *work;

	if (code)
		return code;
	while (strcmp(subcommand->name, arguments->operands[0]) != 0)
		subcommand++;
	work = calloc(1, sizeof(*work));
	if (!work)
		return fail(ENOMEM, "not enough memory");
	code = choices_parse(arguments, subcommand, &work->choices);
	if (!code)
		code = nixl_plugin_load(&work->plugin);
	if (!code)
		code = choose(work);
	if (!code && !work->count)
		code = none_found(&work->search);
	if (!code)
		code = subcommand->run(work);
	free(work->plugin.bytes);
	free(work);
	return code;
}

static const struct command_option options[] = {
	{ .name = "python",
	  .letter = 'p',
	  .argument = "PATH",
	  .complete = "file",
	  .help = "the interpreter, or the virtual environment, that has NIXL" },
	{ .name = "directory",
	  .letter = 'd',
	  .argument = "FOLDER",
	  .complete = "file",
	  .help = "a folder for NIXL_PLUGIN_DIR instead of NIXL's own" },
	{ .name = "as-ucx", .letter = 'u', .help = "under the name UCX, in a folder of its own" },
	{ .name = "allow-root", .help = "install or remove as root" },
	{ .name = "json", .letter = 'j', .help = "status: as JSON" },
	{ 0 },
};

const struct command command_nixl = {
	.name = "nixl",
	.usage = "install|remove|status",
	.summary = "Install the plug-in that makes Wherry a backend of NIXL",
	.details =
		"install copies libplugin_WHERRY.so into the folder where NIXL's wheel (nixl-cu12, "
		"nixl-cu13) looks for plug-ins. A program then moves its bytes by Wherry if it "
		"names the backend WHERRY. remove takes back what install wrote. status says what "
		"is installed, and whether NIXL or Wherry was upgraded since; its exit code is 0 "
		"if "
		"the plug-in is everywhere and current, and 1 if something is to be done.\n"
		"\n"
		"NIXL is looked for among the packages of the interpreter that --python names. By "
		"default that is the one whose package wherry this command belongs to, else "
		"$VIRTUAL_ENV, else the first python3 of PATH; for root only the first of these. "
		"The interpreter does not run, and nothing is imported: its path, pyvenv.cfg and "
		"the folders beside it say enough.\n"
		"\n"
		"--as-ucx is for programs that name UCX in their source. The plug-in gets the name "
		"libplugin_UCX.so in a folder of its own, $XDG_DATA_HOME/wherry/nixl-as-ucx "
		"($HOME/.local/share if that is not set; for root /usr/local/lib/wherry), and "
		"NIXL_PLUGIN_DIR names the folder to NIXL. NIXL then does not find its other "
		"plug-ins, such as POSIX and GDS. Both sides of a transfer must do this: where one "
		"has NIXL's own UCX, both report an error when they load each other's metadata.\n"
		"\n"
		"A file that is not Wherry's is never replaced or removed. Files are written aside "
		"and renamed, and only into folders to which nobody but root and the caller may "
		"write. A record of what was installed lies beside NIXL's folder, "
		".nixl_cu12.wherry.json. pip uninstall does not know of the plug-in: remove it "
		"first.",
	.examples = "wherry nixl install --python venv/bin/python\n"
		    "wherry nixl status || wherry nixl install\n"
		    "wherry nixl install --as-ucx    # prints the line for NIXL_PLUGIN_DIR\n",
	.options = options,
	.complete = "install remove status",
	.least = 1,
	.most = 1,
	.run = nixl_run,
};
