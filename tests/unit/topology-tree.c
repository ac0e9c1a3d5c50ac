/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of sysfs: reading, recording and replaying them. The configuration space of PCI devices. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "topology/pci-config.h"
#include "topology/tree.h"

static char top[] = "/tmp/wherry-tree-XXXXXX", copy[64];
static struct wh_tree tree, recorder;

static void put(const char *path, const char *text)
{
	char full[512];
	FILE *file;

	snprintf(full, sizeof(full), "%s%s", top, path);
	for (char *at = full + strlen(top) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(full, 0777);
		*at = '/';
	}
	file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int set_up(void **state)
{
	char path[512];

	(void)state;
	assert_non_null(mkdtemp(top));
	snprintf(copy, sizeof(copy), "%s-copy", top);
	mkdir(copy, 0777);
	tree = (struct wh_tree){ .root = top };
	recorder = (struct wh_tree){ .root = top, .record = copy };
	put("/sys/devices/a/b/value", "17 and more\nsecond line\n");
	put("/sys/devices/a/b/hex", "0x10de\n");
	put("/sys/devices/a/b/text", "x\033y  \n");
	put("/sys/devices/a/b/empty", "");
	put("/sys/devices/a/b/huge", "99999999999999999999\n");
	put("/dev/char", "char 240\n");
	put("/dev/node10/x", "");
	put("/dev/node9/x", "");
	snprintf(path, sizeof(path), "%s/sys/class", top);
	mkdir(path, 0777);
	snprintf(path, sizeof(path), "%s/sys/class/b", top);
	return symlink("../devices/a/b", path);
}

static int tear_down(void **state)
{
	char command[256];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s %s", top, copy);
	return system(command);
}

/* The tree, the tree while it is recorded, and the recording all give these answers. */
static void tree_expect(const struct wh_tree *from)
{
	char text[64];
	int64_t number;
	int major;

	assert_int_equal(wh_tree_link(from, "/sys/class/b", text, sizeof(text)), 0);
	assert_string_equal(text, "../devices/a/b");
	assert_int_equal(wh_tree_link(from, "/sys/class/b", text, 5), -ENAMETOOLONG);
	assert_int_equal(wh_tree_number(from, "/sys/class/b", "value", &number), 0);
	assert_int_equal(number, 17);
	assert_int_equal(wh_tree_number(from, "/sys/devices/a/b", "hex", &number), 0);
	assert_int_equal(number, 0x10de);
	assert_int_equal(wh_tree_number(from, "/sys/devices/a/b", "text", &number), -EINVAL);
	assert_int_equal(wh_tree_number(from, "/sys/devices/a/b", "empty", &number), -EINVAL);
	assert_int_equal(wh_tree_number(from, "/sys/devices/a/b", "huge", &number), -EINVAL);
	assert_int_equal(wh_tree_number(from, "/sys/devices/a/b", "none", &number), -ENOENT);
	assert_int_equal(number, 0x10de);
	assert_int_equal(wh_tree_line(from, "/sys/class/b", "value", text, sizeof(text)), 0);
	assert_string_equal(text, "17 and more");
	assert_int_equal(wh_tree_line(from, "/sys/class/b", "text", text, sizeof(text)), 0);
	assert_string_equal(text, "x y");
	assert_int_equal(wh_tree_read(from, "/sys/class/b/value", text, 4), 3);
	assert_string_equal(text, "17 ");
	assert_int_equal(wh_tree_read(from, "/sys/class", text, sizeof(text)), -EISDIR);
	assert_int_equal(wh_tree_device(from, "/dev/char", &major), 0);
	assert_int_equal(major, 240);
	assert_int_equal(wh_tree_device(from, "/sys/class/b/hex", &major), -EINVAL);
	assert_int_equal(wh_tree_device(from, "/dev/none", &major), -ENOENT);
	assert_int_equal(wh_tree_open(from, "/dev/char", true), 0);
	assert_int_equal(wh_tree_device(from, "/dev/char", &major), 0);
	assert_int_equal(wh_tree_exists(from, "/sys/class/b"), 0);
	assert_int_equal(wh_tree_exists(from, "/sys/class/c"), -ENOENT);
}

static void read__recorded(void **state)
{
	struct wh_tree again = { .root = copy };

	(void)state;
	tree_expect(&tree);
	tree_expect(&recorder);
	/* The recording has only the bytes that were read. */
	wh_tree_number(&recorder, "/sys/class/b", "value", &(int64_t){ 0 });
	tree_expect(&again);
}

static void list__sorted(void **state)
{
	struct wh_tree_names names;

	(void)state;
	assert_int_equal(wh_tree_list(&tree, "/dev", &names), 0);
	assert_int_equal(names.count, 3);
	assert_string_equal(names.name[0], "char");
	assert_string_equal(names.name[1], "node9");
	assert_string_equal(names.name[2], "node10");
	wh_tree_names_free(&names);
	assert_int_equal(wh_tree_list(&tree, "/nowhere", &names), -ENOENT);
	assert_int_equal(names.count, 0);
	wh_tree_names_free(&names);
	assert_int_equal(wh_tree_list(&tree, "/dev/char", &names), -ENOTDIR);
}

static void path__too_long(void **state)
{
	char path[WH_TREE_PATH + 8], text[8];

	(void)state;
	memset(path, 'a', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(wh_tree_read(&tree, path, text, sizeof(text)), -ENAMETOOLONG);
	assert_int_equal(wh_tree_exists(&tree, path), -ENAMETOOLONG);
	assert_int_equal(wh_tree_line(&tree, path, "x", text, sizeof(text)), -ENAMETOOLONG);
}

/* ---- configuration space --------------------------------------------------------------------- */

static void config__capabilities(void **state)
{
	uint8_t config[WH_PCI_CONFIG] = { [6] = 0x10, [0x34] = 0x60 };
	uint8_t *exact;

	(void)state;
	config[0x60] = 0x01;
	config[0x61] = 0x80;
	config[0x80] = WH_PCI_EXPRESS;
	config[0x88] = 0x10;
	assert_int_equal(wh_pci_capability(config, sizeof(config), WH_PCI_EXPRESS), 0x80);
	assert_int_equal(wh_pci_relaxed(config, sizeof(config)), 1);
	config[0x88] = 0;
	assert_int_equal(wh_pci_relaxed(config, sizeof(config)), 0);
	/* An unprivileged user sees only this much. */
	exact = exact_copy(config, WH_PCI_CONFIG_PUBLIC);
	assert_int_equal(wh_pci_relaxed(exact, WH_PCI_CONFIG_PUBLIC), -ENODATA);
	assert_int_equal(wh_pci_redirects(exact, WH_PCI_CONFIG_PUBLIC), -ENODATA);
	free(exact);
	/* A list that loops, and no list. */
	config[0x80] = 2;
	config[0x81] = 0x60;
	assert_int_equal(wh_pci_capability(config, sizeof(config), WH_PCI_EXPRESS), 0);
	config[6] = 0;
	assert_int_equal(wh_pci_capability(config, sizeof(config), 1), 0);
	assert_int_equal(wh_pci_capability(config, 0, 1), 0);
}

static void config__acs(void **state)
{
	uint8_t config[WH_PCI_CONFIG] = { 0 };

	(void)state;
	assert_int_equal(wh_pci_redirects(config, sizeof(config)), 0);
	config[0x100] = 1; /* another one, then 0x200 */
	config[0x102] = 1;
	config[0x103] = 0x20;
	config[0x200] = WH_PCI_ACS;
	config[0x202] = 1;
	config[0x206] = 0x11;
	assert_int_equal(wh_pci_extended(config, sizeof(config), WH_PCI_ACS), 0x200);
	assert_int_equal(wh_pci_redirects(config, sizeof(config)), 0);
	config[0x206] = 0x04; /* requests */
	assert_int_equal(wh_pci_redirects(config, sizeof(config)), 1);
	config[0x206] = 0x08; /* completions */
	assert_int_equal(wh_pci_redirects(config, sizeof(config)), 1);
	assert_int_equal(wh_pci_redirects(config, 0x204), -ENODATA);
	/* A device that is gone reads as all ones. */
	memset(config, 0xff, sizeof(config));
	assert_int_equal(wh_pci_extended(config, sizeof(config), 0xffff), 0);
	assert_int_equal(wh_pci_redirects(config, sizeof(config)), -ENODATA);
	assert_int_equal(wh_pci_relaxed(config, sizeof(config)), -ENODATA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read__recorded), cmocka_unit_test(list__sorted),
		cmocka_unit_test(path__too_long), cmocka_unit_test(config__capabilities),
		cmocka_unit_test(config__acs),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
