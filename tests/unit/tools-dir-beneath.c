/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many names the kernel has resolved by openat2(). */
static size_t resolved;

static long count_resolved(long number, int folder, const char *path, const void *how, size_t size)
{
	resolved++;
	for (const char *at = path; *at; at++)
		resolved += *at == '/';
	return syscall(number, folder, path, how, size);
}
#define syscall count_resolved

#include "../../tools/dir/beneath.c"
#include "../../tools/dir/message.c"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

static char folder[] = "/tmp/wherry-beneath-XXXXXX";
static int root = -1;

static void make(const char *path, const char *text)
{
	char full[256];
	FILE *file;

	snprintf(full, sizeof(full), "%s/%s", folder, path);
	file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int set_up(void **state)
{
	char path[256];

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/root", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	if (beneath_open_root(path, true, &root) == -ENOSYS) {
		fprintf(stderr, "openat2 is missing\n");
		exit(77);
	}
	make("outside", "secret");
	make("root/file", "bytes");
	assert_int_equal(mkdirat(root, "sub", 0700), 0);
	assert_int_equal(symlinkat("../outside", root, "link"), 0);
	assert_int_equal(symlinkat("sub", root, "inner"), 0);
	assert_int_equal(symlinkat("/", root, "slash"), 0);
	assert_int_equal(mkfifoat(root, "pipe", 0600), 0);
	return 0;
}

static int tear_down(void **state)
{
	char command[256];

	(void)state;
	close(root);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

static void path_valid(void **state)
{
	static const char *const good[] = { "a",    "a/b",           "...", "..a",
					    ".a",   "a.wherry-part", "-",   "a b",
					    "\xff", ".wherry-part" };
	static const char *const bad[] = { "",
					   "/",
					   "/a",
					   "a/",
					   "a//b",
					   ".",
					   "..",
					   "a/..",
					   "../a",
					   "a/../b",
					   "./a",
					   ".a.wherry-part",
					   "a/.b.wherry-part/c" };
	char longest[300];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_true(dir_path_valid(good[i], strlen(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(dir_path_valid(bad[i], strlen(bad[i])));
	assert_false(dir_path_valid("a\0b", 3));
	memset(longest, 'x', sizeof(longest));
	assert_true(dir_path_valid(longest, 255));
	assert_false(dir_path_valid(longest, 256));
}

static void open__refused(void **state)
{
	static const struct {
		const char *path;
		int error;
	} rows[] = {
		{ "link", -ELOOP },        { "inner/x", -ELOOP }, { "slash/etc/passwd", -ELOOP },
		{ "../outside", -EINVAL }, { "/etc", -EINVAL },   { "pipe", -EINVAL },
		{ "sub", -EISDIR },        { "none", -ENOENT },   { "file/x", -ENOTDIR },
		{ "", -EISDIR },
	};
	struct stat status;
	int fd = -7;

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(beneath_open_file(root, rows[i].path, &fd, &status),
				 rows[i].error);
	assert_int_equal(fd, -7);
	assert_int_equal(beneath_open_file(root, "file", &fd, &status), 0);
	assert_int_equal(status.st_size, 5);
	close(fd);
}

/* A lease on a file of the root. -1: the file system has none. */
static int take_lease(const char *path)
{
	int holder = openat(root, path, O_RDWR);

	assert_true(holder >= 0);
	signal(SIGIO, SIG_IGN); /* the kernel asks for the lease by it */
	if (!fcntl(holder, F_SETLEASE, F_WRLCK))
		return holder;
	print_message("no lease on a file of this directory: %s\n", strerror(errno));
	close(holder);
	return -1;
}

/* Who has a lease may keep it for long: nobody waits for that. */
static void open__leased(void **state)
{
	struct stat status;
	int holder = take_lease("file"), fd;
	bool kept;

	(void)state;
	if (holder < 0)
		return;
	assert_int_equal(beneath_open_file(root, "file", &fd, &status), -EBUSY);
	close(holder);
	assert_int_equal(beneath_open_file(root, "file", &fd, &status), 0);
	close(fd);
	make("root/.file.wherry-part", "bytes");
	holder = take_lease(".file.wherry-part");
	assert_int_equal(beneath_open_part(root, "file", 5, true, &fd, &kept), -EBUSY);
	close(holder);
	assert_int_equal(beneath_open_part(root, "file", 5, true, &fd, &kept), 0);
	assert_true(kept);
	close(fd);
	assert_int_equal(unlinkat(root, ".file.wherry-part", 0), 0);
	signal(SIGIO, SIG_DFL);
}

static void part__refused(void **state)
{
	bool kept;
	int fd = -1;

	(void)state;
	assert_int_equal(beneath_open_part(root, "link", 5, false, &fd, &kept), -ELOOP);
	assert_int_equal(beneath_open_part(root, "inner/x", 5, false, &fd, &kept), -ELOOP);
	assert_int_equal(beneath_open_part(root, "sub", 5, false, &fd, &kept), -EISDIR);
	assert_int_equal(beneath_open_part(root, "pipe", 5, false, &fd, &kept), -EINVAL);
	assert_int_equal(beneath_open_part(root, "../x", 5, false, &fd, &kept), -EINVAL);
	assert_int_equal(beneath_open_part(root, "x", UINT64_MAX, false, &fd, &kept), -EFBIG);
	/* The part itself may not be a link that somebody put there. */
	assert_int_equal(symlinkat("../outside", root, ".trap.wherry-part"), 0);
	assert_int_equal(beneath_open_part(root, "trap", 5, true, &fd, &kept), -ELOOP);
	assert_int_equal(beneath_open_part(root, "trap", 5, false, &fd, &kept), 0);
	close(fd);
	assert_int_equal(unlinkat(root, ".trap.wherry-part", 0), 0);
}

static void check_bytes(int fd, const char *text)
{
	char bytes[64] = "";

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, bytes, sizeof(bytes) - 1, 0), strlen(text));
	assert_string_equal(bytes, text);
}

static void part__kept_and_committed(void **state)
{
	struct stat status;
	bool kept = true;
	char text[6] = "";
	int fd = -1;

	(void)state;
	assert_int_equal(beneath_open_part(root, "sub/new", 5, true, &fd, &kept), 0);
	assert_false(kept);
	assert_int_equal(pwrite(fd, "12345", 5, 0), 5);
	close(fd);
	assert_int_equal(beneath_stat(root, "sub/new", &status), -ENOENT);
	/* Another length is another file. */
	assert_int_equal(beneath_open_part(root, "sub/new", 5, true, &fd, &kept), 0);
	assert_true(kept);
	assert_int_equal(beneath_commit(root, "sub/new", fd, 0640, -1500000000), 0);
	assert_int_equal(pread(fd, text, 5, 0), 5);
	assert_string_equal(text, "12345");
	close(fd);
	assert_int_equal(beneath_stat(root, "sub/new", &status), 0);
	assert_int_equal(status.st_mode & 0777, 0640);
	assert_int_equal(status.st_mtim.tv_sec, -2);
	assert_int_equal(status.st_mtim.tv_nsec, 500000000);
	assert_int_equal(beneath_open_part(root, "sub/new", 6, true, &fd, &kept), 0);
	assert_false(kept);
	close(fd);
	assert_int_equal(beneath_stat(root, "sub/new", &status), 0); /* the old one is there */
	assert_int_equal(status.st_size, 5);
	assert_int_equal(unlinkat(root, "sub/.new.wherry-part", 0), 0);
}

/* Two copies of one file at a time: neither gets the other one's half file under its name. */
static void part__of_two(void **state)
{
	int first, second, third;
	struct stat status;
	bool kept;

	(void)state;
	assert_int_equal(beneath_open_part(root, "two", 5, false, &first, &kept), 0);
	assert_int_equal(pwrite(first, "first", 5, 0), 5);
	assert_int_equal(beneath_open_part(root, "two", 5, true, &second, &kept), -EBUSY);
	assert_int_equal(beneath_open_part(root, "two", 5, false, &second, &kept), 0);
	assert_int_equal(beneath_commit(root, "two", first, 0600, 0), -EBUSY);
	assert_int_equal(beneath_stat(root, "two", &status), -ENOENT);
	assert_int_equal(pwrite(second, "other", 5, 0), 5);
	assert_int_equal(beneath_commit(root, "two", second, 0600, 0), 0);
	close(first);
	/* What has its name is not gone on with. */
	assert_int_equal(beneath_open_part(root, "two", 5, true, &third, &kept), 0);
	assert_false(kept);
	check_bytes(second, "other");
	close(second);
	close(third);
	assert_int_equal(unlinkat(root, ".two.wherry-part", 0), 0);
	assert_int_equal(unlinkat(root, "two", 0), 0);
}

/* What has another name is somebody else's, too: it is neither written nor made shorter. */
static void part__with_other_names(void **state)
{
	struct stat status;
	bool kept = true;
	int fd;

	(void)state;
	make("outside-too", "12345");
	assert_int_equal(linkat(root, "../outside-too", root, ".both.wherry-part", 0), 0);
	assert_int_equal(beneath_open_part(root, "both", 5, true, &fd, &kept), 0);
	assert_false(kept);
	assert_int_equal(pwrite(fd, "wrong", 5, 0), 5);
	close(fd);
	assert_int_equal(fstatat(root, "../outside-too", &status, 0), 0);
	assert_int_equal(status.st_size, 5);
	fd = openat(root, "../outside-too", O_RDONLY);
	check_bytes(fd, "12345");
	close(fd);
	assert_int_equal(unlinkat(root, ".both.wherry-part", 0), 0);
}

/* It has the mode of its source by the time at which it is to get its name. */
static void part__kept_with_its_last_mode(void **state)
{
	struct stat status;
	bool kept = false;
	int fd;

	(void)state;
	make("root/.read.wherry-part", "12345");
	assert_int_equal(fchmodat(root, ".read.wherry-part", 0666, 0), 0);
	assert_int_equal(beneath_open_part(root, "read", 5, true, &fd, &kept), 0);
	assert_true(kept);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	close(fd);
	assert_int_equal(unlinkat(root, ".read.wherry-part", 0), 0);
}

static void make_directory(void **state)
{
	struct stat status;
	bool made;

	(void)state;
	assert_int_equal(beneath_make_directory(root, "one/two/three", 0, &made), 0);
	assert_int_equal(beneath_make_directory(root, "one/two/three", 0, &made), 0);
	assert_int_equal(beneath_stat(root, "one/two/three", &status), 0);
	assert_true(S_ISDIR(status.st_mode));
	assert_int_equal(beneath_make_directory(root, "file", 0, &made), -ENOTDIR);
	assert_int_equal(beneath_make_directory(root, "file/x", 0, &made), -ENOTDIR);
	assert_int_equal(beneath_make_directory(root, "slash/tmp/x", 0, &made), -ELOOP);
	assert_int_equal(beneath_make_directory(root, "a/../b", 0, &made), -EINVAL);
}

static mode_t mode_of(const char *path)
{
	struct stat status;

	assert_int_equal(beneath_stat(root, path, &status), 0);
	return status.st_mode & 07777;
}

/* It never has rights that its source lacks, but its owner's; in the end not even these. */
static void directory__modes(void **state)
{
	mode_t before = umask(022);
	struct stat status;
	bool made;

	(void)state;
	assert_int_equal(beneath_make_directory(root, "own", S_IFDIR | 0700, &made), 0);
	assert_true(made);
	assert_int_equal(mode_of("own"), 0700);
	assert_int_equal(beneath_make_directory(root, "own/all", S_IFDIR | 01777, &made), 0);
	assert_int_equal(mode_of("own/all"), 01777);
	assert_int_equal(beneath_make_directory(root, "own/all", S_IFDIR | 0700, &made), 0);
	assert_false(made);
	assert_int_equal(mode_of("own/all"), 01777);
	assert_int_equal(beneath_make_directory(root, "own/read", S_IFDIR | 0555, &made), 0);
	assert_int_equal(mode_of("own/read"), 0755);
	assert_int_equal(beneath_make_directory(root, "own/any/one", S_IFDIR | 0750, &made), 0);
	assert_int_equal(mode_of("own/any"), 0755);
	assert_int_equal(mode_of("own/any/one"), 0750);
	assert_int_equal(beneath_narrow_directory(root, "own/all", S_IFDIR | 0050, false, 0), 0);
	assert_int_equal(mode_of("own/all"), 01750);
	assert_int_equal(beneath_narrow_directory(root, "own/read", S_IFDIR | 0555, true, -1), 0);
	assert_int_equal(beneath_stat(root, "own/read", &status), 0);
	assert_int_equal(status.st_mode & 07777, 0555);
	assert_int_equal(status.st_mtim.tv_sec, -1);
	assert_int_equal(status.st_mtim.tv_nsec, 999999999);
	assert_int_equal(beneath_narrow_directory(root, "own", S_IFDIR | 0777, true, 0), 0);
	assert_int_equal(mode_of("own"), 0700);
	assert_int_equal(beneath_narrow_directory(root, "inner", S_IFDIR, true, 0), -ELOOP);
	umask(before);
}

static int count_found(void *arg, const char *name, const struct stat *status)
{
	size_t *counts = arg;

	assert_true(dir_path_valid(name, strlen(name)));
	counts[S_ISLNK(status->st_mode) ? 1 : 0]++;
	return 0;
}

/* Any time that a file system has. */
static void describe__times(void **state)
{
	static const struct {
		struct timespec time;
		int64_t mtime;
	} rows[] = { { { 0, 5 }, 5 },
		     { { -1, 500000000 }, -500000000 },
		     { { 9223372036, 854775807 }, INT64_MAX },
		     { { 9223372036, 854775808 }, INT64_MAX },
		     { { INT64_MAX, 999999999 }, INT64_MAX },
		     { { INT64_MIN, 0 }, INT64_MIN } };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct stat status = { .st_mode = S_IFREG, .st_mtim = rows[i].time };
		struct dir_item item = { 0 };
		struct timespec times[2];

		beneath_describe(&status, &item);
		assert_true(item.mtime == rows[i].mtime);
		times_of(item.mtime, times);
		assert_in_range(times[1].tv_nsec, 0, 999999999);
	}
}

static void list__follows_no_link(void **state)
{
	size_t counts[2] = { 0 }, top[2] = { 0 };

	(void)state;
	make("root/sub/.x.wherry-part", "");
	assert_int_equal(beneath_list(root, "", true, count_found, counts), 0);
	assert_int_equal(counts[1], 3);
	assert_int_equal(counts[0], 7); /* file, sub, sub/new, pipe, one, one/two, three */
	assert_int_equal(beneath_list(root, "", false, count_found, top), 0);
	assert_int_equal(top[1], 3);
	assert_int_equal(top[0], 4); /* file, sub, pipe, one */
	assert_int_equal(beneath_list(root, "inner", true, count_found, counts), -ELOOP);
	assert_int_equal(beneath_list(root, "file", true, count_found, counts), -ENOTDIR);
}

#define DEPTH 300

/* Each directory costs as much as the one above it, and one is open at a time. */
static void deep_trees(void **state)
{
	char path[2 * DEPTH] = "d";
	size_t counts[2] = { 0 };
	struct rlimit before, few;
	bool made;

	(void)state;
	for (size_t i = 1; i < DEPTH; i++)
		memcpy(path + 2 * i - 1, "/d", 3);
	resolved = 0;
	assert_int_equal(beneath_make_directory(root, path, 0, &made), 0);
	assert_true(resolved < 8 * DEPTH);
	resolved = 0;
	assert_int_equal(beneath_make_directory(root, path, 0, &made), 0);
	assert_true(resolved < 8 * DEPTH);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = 32;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(beneath_list(root, "d", true, count_found, counts), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(counts[0], DEPTH - 1);
}

static void extents(void **state)
{
	struct dir_extent out[DIR_EXTENTS_MAX];
	uint64_t data = 0;
	size_t count;
	int fd = openat(root, "sparse", O_CREAT | O_RDWR | O_EXCL, 0600);

	(void)state;
	assert_int_equal(ftruncate(fd, 64 << 20), 0);
	beneath_extents(fd, 64 << 20, out, &count);
	if (!count)
		assert_int_equal(pwrite(fd, "x", 1, 32 << 20), 1);
	beneath_extents(fd, 64 << 20, out, &count);
	assert_int_equal(count, 1); /* on a file system without holes it is all of it */
	assert_true(out[0].offset <= 32 << 20 && out[0].offset + out[0].length > 32 << 20);
	/* More than fit: the last one reaches to the end. */
	for (off_t i = 0; i < DIR_EXTENTS_MAX + 100; i++)
		assert_int_equal(pwrite(fd, "x", 1, i * 32768), 1);
	beneath_extents(fd, 64 << 20, out, &count);
	for (size_t i = 0; i < count; i++) {
		assert_true(!i || out[i].offset >= out[i - 1].offset + out[i - 1].length);
		data = out[i].offset + out[i].length;
	}
	assert_true(count == 1 || count == DIR_EXTENTS_MAX);
	assert_int_equal(data, 64 << 20);
	close(fd);
}

static void sum(void **state)
{
	/* of "bytes" */
	static const uint8_t first[4] = { 0x27, 0x70, 0x89, 0xd9 };
	uint8_t out[DIR_DIGEST], part[DIR_DIGEST];
	struct stat status;
	int fd = -1;

	(void)state;
	assert_int_equal(beneath_open_file(root, "file", &fd, &status), 0);
	assert_int_equal(beneath_sum(fd, 0, 5, out), 0);
	assert_int_equal(beneath_sum(fd, 1, 4, part), 0);
	assert_memory_equal(out, first, sizeof(first));
	assert_memory_not_equal(out, part, DIR_DIGEST);
	assert_int_equal(beneath_sum(fd, 1, 5, out), -EIO);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(path_valid),
		cmocka_unit_test(open__refused),
		cmocka_unit_test(open__leased),
		cmocka_unit_test(part__refused),
		cmocka_unit_test(part__kept_and_committed),
		cmocka_unit_test(part__of_two),
		cmocka_unit_test(part__with_other_names),
		cmocka_unit_test(part__kept_with_its_last_mode),
		cmocka_unit_test(make_directory),
		cmocka_unit_test(list__follows_no_link),
		cmocka_unit_test(describe__times),
		cmocka_unit_test(directory__modes),
		cmocka_unit_test(deep_trees),
		cmocka_unit_test(extents),
		cmocka_unit_test(sum),
	};

	return cmocka_run_group_tests_name("tools-dir-beneath", tests, set_up, tear_down);
}
