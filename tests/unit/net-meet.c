/* SPDX-License-Identifier: Apache-2.0 */
/* net-meet.c: unix sockets in folders: names, directories, what is dead and what is refused */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/meet.h"

#define GOOD "wherry-0123456789abcdef0123456789abcdef"

static char folder[64], directory[96];
static char why[WH_REFUSAL];

static int folder_make(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "/tmp/net-meet-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(directory, sizeof(directory), "%s/wherry-%u", folder, (unsigned)geteuid());
	return 0;
}

static int folder_remove(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static struct wh_meet_folders only(const char *path)
{
	struct wh_meet_folders folders;

	wh_meet_folders(path, &folders);
	return folders;
}

static void folders__of_the_setting(void **state)
{
	struct wh_meet_folders folders = only("/a,/b/c");
	char text[16];

	(void)state;
	assert_int_equal(folders.count, 2);
	assert_string_equal(folders.path[1], "/b/c");
	assert_true(folders.given);
	wh_meet_text(&folders, text, sizeof(text));
	assert_string_equal(text, "/a, /b/c");
	wh_meet_text(&folders, text, 4);
	assert_string_equal(text, "/a,");
	assert_int_equal(only("off").count, 0);
	assert_int_equal(only("/1,/2,/3,/4").count, 4);
	setenv("XDG_RUNTIME_DIR", "/x", 1);
	folders = only("");
	assert_int_equal(folders.count, 3);
	assert_string_equal(folders.path[0], "/x");
	assert_string_equal(folders.path[1], "/run/wherry");
	assert_string_equal(folders.path[2], "/dev/shm");
	assert_false(folders.given);
	setenv("XDG_RUNTIME_DIR", "relative", 1);
	assert_int_equal(only("").count, 2);
}

static void name__nothing_else(void **state)
{
	static const char *const bad[] = {
		"",
		"wherry-",
		"wherry-0123456789abcdef0123456789abcde", /* one less */
		(GOOD "0"),
		(GOOD ".new"),
		"wherry-0123456789ABCDEF0123456789abcdef",
		"wherry-../../../../etc/passwd1234567890",
		"../rry-0123456789abcdef0123456789abcdef",
		"/herry-0123456789abcdef0123456789abcdef",
		"wherry-0123456789abcdef/123456789abcdef",
	};
	struct wh_meet_folders folders = only(folder);
	char name[WH_MEET_NAME], other[WH_MEET_NAME];

	(void)state;
	assert_true(wh_meet_name_valid(GOOD));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_false(wh_meet_name_valid(bad[i]));
		assert_int_equal(wh_meet_find(&folders, bad[i], why), -EPROTO);
	}
	assert_int_equal(wh_meet_name(name), 0);
	assert_int_equal(wh_meet_name(other), 0);
	assert_true(wh_meet_name_valid(name));
	assert_string_not_equal(name, other);
}

static void listen__found_and_left(void **state)
{
	struct wh_meet_folders folders = only(folder);
	struct wh_meet meet;
	struct stat status;
	int fd, found, to;

	(void)state;
	assert_int_equal(wh_meet_find(&folders, GOOD, why), -ENOENT);
	assert_non_null(strstr(why, folder));
	fd = wh_meet_listen(folder, GOOD, &meet, why);
	assert_true(fd >= 0);
	assert_int_equal(stat(directory, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0700);
	found = wh_meet_find(&folders, GOOD, why);
	assert_true(found >= 0);
	assert_int_equal(fstat(found, &status), 0);
	assert_int_equal(status.st_mode, S_IFSOCK | 0600);
	to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(wh_meet_connect(to, found), 0);
	close(to);
	close(found);
	wh_meet_leave(&meet);
	assert_int_equal(meet.directory, -1);
	assert_int_equal(wh_meet_find(&folders, GOOD, why), -ENOENT);
	assert_int_equal(rmdir(directory), 0); /* nothing is left */
	close(fd);
}

/* What is found stays what it is, whatever takes its name before connect(). */
static void find__not_replaced(void **state)
{
	struct wh_meet_folders folders = only(folder);
	struct wh_meet meet, other = { .directory = -1 };
	int fd, found, to, accepted, impostor;
	char command[256];

	(void)state;
	fd = wh_meet_listen(folder, GOOD, &meet, why);
	found = wh_meet_find(&folders, GOOD, why);
	assert_true(fd >= 0 && found >= 0);
	snprintf(command, sizeof(command), "mv %s/" GOOD " %s/was", directory, directory);
	assert_int_equal(system(command), 0);
	impostor = wh_meet_listen(folder, GOOD, &other, why);
	assert_true(impostor >= 0);
	to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(wh_meet_connect(to, found), 0);
	accepted = accept(fd, NULL, NULL);
	assert_true(accepted >= 0);
	assert_int_equal(accept(impostor, NULL, NULL), -1);
	assert_int_equal(errno, EAGAIN);
	close(accepted);
	close(to);
	close(found);
	close(fd);
	close(impostor);
	wh_meet_leave(&other);
	wh_meet_leave(&meet);
	snprintf(command, sizeof(command), "rm -r %s", directory);
	assert_int_equal(system(command), 0);
}

/* Names of processes that have ended go; those of others, and everything else, stay. */
static void sweep__the_dead(void **state)
{
	char name[WH_MEET_NAME], other[WH_MEET_NAME], path[256];
	struct wh_meet meet, dead;
	int fd, file, held;

	(void)state;
	assert_int_equal(wh_meet_name(name), 0);
	assert_int_equal(wh_meet_name(other), 0);
	fd = wh_meet_listen(folder, name, &meet, why);
	assert_true(fd >= 0);
	for (int i = 0; i < 3; i++) {
		char of[WH_MEET_NAME];

		assert_int_equal(wh_meet_name(of), 0);
		held = wh_meet_listen(folder, of, &dead, why);
		assert_true(held >= 0);
		/* The first goes when the second comes, and so on. */
		close(held);
		close(dead.directory);
	}
	snprintf(path, sizeof(path), "%s/" GOOD, directory);
	file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* no socket */
	assert_true(file >= 0);
	close(file);
	snprintf(path, sizeof(path), "%s/%s.old", directory, name); /* no name */
	assert_int_equal(symlink("x", path), 0);
	held = wh_meet_directory(folder, false, why);
	assert_true(held >= 0);
	assert_int_equal(wh_meet_sweep(held), 1); /* the last one of the three */
	assert_int_equal(wh_meet_sweep(held), 0);
	assert_int_equal(faccessat(held, name, F_OK, 0), 0);
	assert_int_equal(faccessat(held, GOOD, F_OK, 0), 0);
	assert_int_equal(unlinkat(held, GOOD, 0), 0);
	assert_int_equal(unlink(path), 0);
	close(held);
	wh_meet_leave(&meet);
	close(fd);
	assert_int_equal(rmdir(directory), 0);
}

static void directory__refused(void **state)
{
	struct wh_meet meet;

	(void)state;
	assert_int_equal(wh_meet_directory("/no/such/folder", true, why), -ENOENT);
	assert_non_null(strstr(why, "/no/such/folder: No such file"));
	assert_int_equal(wh_meet_directory(folder, false, why), -ENOENT);
	assert_int_equal(mkdir(directory, 0755), 0);
	assert_int_equal(chmod(directory, 0755), 0);
	assert_int_equal(wh_meet_directory(folder, false, why), -EPERM);
	assert_non_null(strstr(why, "mode 0755"));
	assert_int_equal(wh_meet_listen(folder, GOOD, &meet, why), -EPERM);
	if (geteuid() == 0) {
		assert_int_equal(chmod(directory, 0700), 0);
		assert_int_equal(chown(directory, 1, 1), 0);
		assert_int_equal(wh_meet_directory(folder, true, why), -EPERM);
		assert_non_null(strstr(why, "of user 1 and"));
	}
	assert_int_equal(rmdir(directory), 0);
	assert_int_equal(symlink("/tmp", directory), 0);
	assert_true(wh_meet_directory(folder, true, why) < 0);
	assert_int_equal(unlink(directory), 0);
	/* The bit that a folder with a group passes on to what is made in it. */
	assert_int_equal(mkdir(directory, 0700), 0);
	assert_int_equal(chmod(directory, 02700), 0);
	meet.directory = wh_meet_directory(folder, false, why);
	assert_true(meet.directory >= 0);
	close(meet.directory);
	assert_int_equal(rmdir(directory), 0);
}

/* ---- the binding of keys ------------------------------------------------------------------------
 */

static struct wh_crypto crypto;

static int pidfd_of(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void bound(int fd, bool owner, uint8_t key[WH_KEY_SIZE])
{
	memset(key, 7, WH_KEY_SIZE);
	assert_int_equal(wh_meet_bind(&crypto, fd, owner, key), 0);
}

/* Since Linux 6.9: the pidfds of two processes have two inodes. */
static bool can_tell_processes(void)
{
	int own = pidfd_of(getpid()), parent = pidfd_of(getppid());
	struct stat a = { .st_ino = 1 }, b = { .st_ino = 1 };
	bool can = own >= 0 && parent >= 0 && !fstat(own, &a) && !fstat(parent, &b) &&
		   a.st_ino != b.st_ino;

	close(own);
	close(parent);
	return can;
}

static void bind__both_ends_agree(void **state)
{
	static const uint8_t plain[WH_KEY_SIZE] = {
		7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
		7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7
	};
	uint8_t here[WH_KEY_SIZE], there[WH_KEY_SIZE];
	struct wh_meet_folders folders = only(folder);
	struct wh_meet meet;
	int fd, found, to, accepted, pair[2];

	(void)state;
	assert_int_equal(wh_crypto_open(&crypto, NULL), 0);
	fd = wh_meet_listen(folder, GOOD, &meet, why);
	found = wh_meet_find(&folders, GOOD, why);
	to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(wh_meet_connect(to, found), 0);
	accepted = accept(fd, NULL, NULL);
	assert_true(accepted >= 0);
	bound(to, false, here);
	bound(accepted, true, there);
	assert_memory_equal(here, there, WH_KEY_SIZE);
	assert_memory_not_equal(here, plain, WH_KEY_SIZE);
	/* Not by path: as before. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	bound(pair[0], false, here);
	assert_memory_equal(here, plain, WH_KEY_SIZE);
	close(pair[0]);
	close(pair[1]);
	close(accepted);
	close(to);
	close(found);
	close(fd);
	wh_meet_leave(&meet);
	wh_crypto_close(&crypto);
	assert_int_equal(rmdir(directory), 0);
}

/* A process that passes a connection on is not the one at its end: not while it lives, and not when
 * it has ended. */
static void bind__another_process(void **state)
{
	uint8_t here[WH_KEY_SIZE], there[WH_KEY_SIZE];
	struct wh_meet_folders folders = only(folder);
	struct wh_meet meet;
	int fd, found, to, accepted, status;
	pid_t pid;

	(void)state;
	if (!can_tell_processes()) {
		print_message("this kernel has no number for processes\n");
		return;
	}
	assert_int_equal(wh_crypto_open(&crypto, NULL), 0);
	fd = wh_meet_listen(folder, GOOD, &meet, why);
	found = wh_meet_find(&folders, GOOD, why);
	assert_true(fd >= 0 && found >= 0);
	to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid = fork();
	if (!pid) /* the socket, and so the connection, is the parent's, too */
		_exit(wh_meet_connect(to, found) ? 1 : 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	accepted = accept(fd, NULL, NULL);
	assert_true(accepted >= 0);
	bound(to, false, here);
	memset(there, 7, sizeof(there));
	if (!wh_meet_bind(&crypto, accepted, true, there))
		assert_memory_not_equal(here, there, WH_KEY_SIZE);
	close(accepted);
	close(to);
	close(found);
	close(fd);
	wh_meet_leave(&meet);
	wh_crypto_close(&crypto);
	assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(folders__of_the_setting),
		cmocka_unit_test_setup_teardown(name__nothing_else, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(listen__found_and_left, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(find__not_replaced, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(sweep__the_dead, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(directory__refused, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(bind__both_ends_agree, folder_make, folder_remove),
		cmocka_unit_test_setup_teardown(bind__another_process, folder_make, folder_remove),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
