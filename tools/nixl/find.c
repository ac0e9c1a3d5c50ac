/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIXL among the packages of an interpreter. The interpreter does not run: it could run anything,
 * and what it would say is known from where it lies. NIXL is not imported either, as it loads CUDA.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "nixl/find.h"
#include "nixl/nixl.h"
#include "util/text.h"

#define LIBRARIES_END ".mesonpy.libs"

/* ---- folders of packages --------------------------------------------------------------------- */

/* "FOLDER/NAME" in `out`; false: too long. */
static bool path_join(char out[PATH_MAX], const char *folder, const char *name)
{
	return snprintf(out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

static bool path_is_folder(const char *path)
{
	struct stat status;

	return !stat(path, &status) && S_ISDIR(status.st_mode);
}

/* Cut the last name off. False: there is none. */
static bool path_cut(char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash)
		return false;
	*slash = 0;
	return true;
}

static bool path_cut_twice(char *path)
{
	if (!path_cut(path))
		return false;
	return path_cut(path);
}

/* The wheel whose libraries are in `entry` of a folder of packages, if it is NIXL's. */
static void site_add_wheel(struct nixl_search *search, const char *site, const char *entry)
{
	const char *end = strstr(entry, LIBRARIES_END);
	struct nixl_wheel *wheel;
	char folder[PATH_MAX];

	if (strncmp(entry, ".nixl", 5) != 0 || !end || end[strlen(LIBRARIES_END)] ||
	    end - entry > NIXL_NAME || search->wheel_count == NIXL_WHEELS ||
	    !wh_text_is_clean(entry, strlen(entry)))
		return;
	if (snprintf(folder, sizeof(folder), "%s/%s/plugins", site, entry) >= PATH_MAX ||
	    !path_is_folder(folder))
		return;
	wheel = &search->wheels[search->wheel_count];
	snprintf(wheel->name, sizeof(wheel->name), "%.*s", (int)(end - entry - 1), entry + 1);
	snprintf(wheel->site, sizeof(wheel->site), "%s", site);
	wh_nixl_version_of_wheel(site, entry, wheel->version);
	wh_text_clean(wheel->version);
	search->wheel_count++;
}

static void search_add_site(struct nixl_search *search, const char *path)
{
	struct dirent *entry;
	char *site;
	DIR *folder;

	if (search->site_count == NIXL_SITES)
		return;
	site = search->sites[search->site_count];
	if (!realpath(path, site))
		return;
	for (unsigned i = 0; i < search->site_count; i++)
		if (!strcmp(search->sites[i], site))
			return;
	folder = opendir(site);
	if (!folder)
		return;
	search->site_count++;
	while ((entry = readdir(folder)))
		site_add_wheel(search, site, entry->d_name);
	closedir(folder);
}

/* The folders of packages in PREFIX/`library`, of Python `version` ("3.11"; "": all). */
static void search_add_library(struct nixl_search *search, const char *prefix, const char *library,
			       const char *version)
{
	char folder[PATH_MAX], site[PATH_MAX];
	struct dirent *entry;
	DIR *list;

	list = path_join(folder, prefix, library) ? opendir(folder) : NULL;
	while (list && (entry = readdir(list))) {
		const char *rest = entry->d_name + strlen("python3");

		/* Debian has packages for all versions in "python3". */
		if (strncmp(entry->d_name, "python3", strlen("python3")) != 0 ||
		    (*rest && *version && strcmp(rest - 1, version) != 0))
			continue;
		for (int i = 0; i < 2; i++)
			if (snprintf(site, sizeof(site), "%s/%s/%s", folder, entry->d_name,
				     i ? "dist-packages" : "site-packages") < PATH_MAX)
				search_add_site(search, site);
	}
	if (list)
		closedir(list);
}

static void search_add_prefix(struct nixl_search *search, const char *prefix, const char *version)
{
	static const char *const libraries[] = { "lib", "lib64", "local/lib", "local/lib64" };

	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
		search_add_library(search, prefix, libraries[i], version);
}

/* What the user has installed for himself. */
static void search_add_user(struct nixl_search *search, const char *version)
{
	const char *base = getenv("PYTHONUSERBASE"), *home = getenv("HOME");
	char path[PATH_MAX];

	if (base && *base == '/')
		search_add_prefix(search, base, version);
	else if (home && *home == '/' && path_join(path, home, ".local"))
		search_add_prefix(search, path, version);
}

/* ---- virtual environments -------------------------------------------------------------------- */

/* The value of a line "key = value"; false: it is of another key. */
static bool line_value(const char *line, size_t length, const char *key, const char **value,
		       size_t *value_length)
{
	size_t at = 0;

	while (at < length && isspace((unsigned char)line[at]))
		at++;
	if (length - at < strlen(key) || strncasecmp(line + at, key, strlen(key)) != 0)
		return false;
	for (at += strlen(key); at < length && isspace((unsigned char)line[at]);)
		at++;
	if (at == length || line[at] != '=')
		return false;
	for (at++; at < length && isspace((unsigned char)line[at]);)
		at++;
	while (length > at && isspace((unsigned char)line[length - 1]))
		length--;
	*value = line + at;
	*value_length = length - at;
	return true;
}

void nixl_venv_parse(const char *text, struct nixl_venv *out)
{
	memset(out, 0, sizeof(*out));
	while (*text) {
		size_t length = strcspn(text, "\n"), value_length;
		const char *value;

		if (line_value(text, length, "home", &value, &value_length) &&
		    value_length < sizeof(out->home))
			snprintf(out->home, sizeof(out->home), "%.*s", (int)value_length, value);
		if (line_value(text, length, "include-system-site-packages", &value, &value_length))
			out->system = value_length == 4 && !strncasecmp(value, "true", 4);
		text += length + (text[length] == '\n');
	}
}

/* Is `prefix` a virtual environment? Then its pyvenv.cfg in *out. */
static bool venv_read(const char *prefix, struct nixl_venv *out)
{
	char path[PATH_MAX], text[4096];
	size_t length;
	FILE *file;

	file = path_join(path, prefix, "pyvenv.cfg") ? fopen(path, "re") : NULL;
	if (!file)
		return false;
	length = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[length] = 0;
	nixl_venv_parse(text, out);
	return true;
}

/* ---- interpreters ---------------------------------------------------------------------------- */

/* "3.11" of ".../python3.11"; "" if the name has no version. */
static void interpreter_version(const char *path, char out[16])
{
	const char *base = strrchr(path, '/');

	base = base ? base + 1 : path;
	*out = 0;
	if (!strncmp(base, "python3.", 8) && strlen(base) < 6 + 16)
		snprintf(out, 16, "%s", base + 6);
}

static void search_add_venv(struct nixl_search *search, const char *prefix,
			    const struct nixl_venv *venv, bool root)
{
	char python[PATH_MAX], real[PATH_MAX], base[PATH_MAX], version[16] = "";

	search_add_prefix(search, prefix, "");
	if (!venv->system || !realpath(venv->home, base) || !path_cut(base))
		return;
	if (path_join(python, prefix, "bin/python") && realpath(python, real))
		interpreter_version(real, version);
	search_add_prefix(search, base, version);
	if (!root)
		search_add_user(search, version);
}

/* A script that starts an interpreter, such as pyenv's, says nothing of its packages. */
static bool interpreter_is_script(const char *path)
{
	char begin[2] = "";
	FILE *file = fopen(path, "re");
	bool script;

	if (!file)
		return false;
	script = fread(begin, 1, 2, file) == 2 && begin[0] == '#' && begin[1] == '!';
	fclose(file);
	return script;
}

/* A virtual environment has pyvenv.cfg beside the interpreter, which is a link as a rule, or in the
 * folder above. */
static bool interpreter_is_of_venv(const char *python, char prefix[PATH_MAX], struct nixl_venv *out)
{
	snprintf(prefix, PATH_MAX, "%s", python);
	if (path_is_folder(python))
		return venv_read(prefix, out);
	return path_cut(prefix) &&
	       (venv_read(prefix, out) || (path_cut(prefix) && venv_read(prefix, out)));
}

static int search_interpreter(struct nixl_search *search, const char *python, bool root, bool say)
{
	char prefix[PATH_MAX], version[16];
	struct nixl_venv venv;
	bool in_venv;

	snprintf(search->python, sizeof(search->python), "%s", python);
	/* Absolute, and its last link not followed. */
	if (*python != '/' &&
	    !(getcwd(prefix, sizeof(prefix)) && path_join(search->python, prefix, python)))
		return say ? fail(ENAMETOOLONG, "%s: too long", python) : EXIT_FAIL;
	if (access(search->python, F_OK))
		return say ? fail(errno, "%s: %s", python, strerror(errno)) : EXIT_FAIL;
	in_venv = interpreter_is_of_venv(search->python, prefix, &venv);
	if (in_venv) {
		search_add_venv(search, prefix, &venv, root);
		return EXIT_PASS;
	}
	if (path_is_folder(search->python) || interpreter_is_script(search->python))
		return say ? fail(EINVAL,
				  "%s is no Python interpreter and no virtual environment; python "
				  "-c 'import sys; print(sys.executable)' prints an interpreter's "
				  "path",
				  python) :
			     EXIT_FAIL;
	if (!realpath(search->python, prefix))
		return say ? fail(errno, "%s: %s", python, strerror(errno)) : EXIT_FAIL;
	interpreter_version(prefix, version);
	if (path_cut_twice(prefix))
		search_add_prefix(search, prefix, version);
	if (!root)
		search_add_user(search, version);
	return EXIT_PASS;
}

/* The Python package that this command is a file of: SITE/wherry/bin/wherry. */
static bool search_own_package(struct nixl_search *search, bool root)
{
	char site[PATH_MAX], file[PATH_MAX], version[16] = "", *last;
	ssize_t length = readlink("/proc/self/exe", site, sizeof(site) - 1);
	struct nixl_venv venv;

	site[length > 0 ? length : 0] = 0;
	if (!path_cut(site) || !(last = strrchr(site, '/')) || strcmp(last, "/bin") != 0 ||
	    !path_cut(site) || !path_join(file, site, "__init__.py") || access(file, F_OK) ||
	    !path_cut(site))
		return false;
	snprintf(search->python, sizeof(search->python), "%s", site);
	search_add_site(search, site);
	/* PREFIX/lib/python3.11/site-packages, or a folder of pip install --target. */
	last = strrchr(site, '/');
	if (!last || strcmp(last, "/site-packages") != 0)
		if (!last || strcmp(last, "/dist-packages") != 0)
			return true;
	path_cut(site);
	interpreter_version(site, version);
	if (!path_cut_twice(site))
		return true;
	if (venv_read(site, &venv))
		search_add_venv(search, site, &venv, root);
	else
		search_add_prefix(search, site, version);
	return true;
}

/* The program `name` as PATH has it; relative entries are left out. */
static bool path_find(const char *name, char out[PATH_MAX])
{
	const char *path = getenv("PATH");

	while (path && *path) {
		size_t length = strcspn(path, ":");

		if (*path == '/' &&
		    snprintf(out, PATH_MAX, "%.*s/%s", (int)length, path, name) < PATH_MAX &&
		    !access(out, X_OK))
			return true;
		path += length + (path[length] == ':');
	}
	return false;
}

int nixl_find(const char *python, bool root, bool say, struct nixl_search *out)
{
	const char *venv = getenv("VIRTUAL_ENV");
	char found[PATH_MAX];

	memset(out, 0, sizeof(*out));
	if (python && (strchr(python, '/') || path_is_folder(python)))
		return search_interpreter(out, python, root, say);
	if (!python && search_own_package(out, root))
		return EXIT_PASS;
	if (root && !say)
		return EXIT_USAGE;
	if (root)
		return usage_error("root's variables do not choose an interpreter: name its path "
				   "with --python, or a folder with --directory");
	if (!python && venv && *venv == '/')
		return search_interpreter(out, venv, root, say);
	if (path_find(python ? python : "python3", found))
		return search_interpreter(out, found, root, say);
	return say ? fail(ENODEV, "there is no %s in PATH; name an interpreter with --python",
			  python ? python : "python3") :
		     EXIT_UNAVAILABLE;
}
