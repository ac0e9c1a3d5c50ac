/* SPDX-License-Identifier: Apache-2.0 */
/* command.c: run the wherry command, restrict its system calls, and watch its files */
#include "command.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *command_missing(void)
{
	const char *path = getenv("TEST_COMMAND");

	return path && !access(path, X_OK) ? NULL : "TEST_COMMAND is not the wherry command";
}

const struct route needs_command = { .name = "command", .missing = command_missing };

void command_start(struct command *command, const char *directory, void (*before)(void),
		   const char *const *arguments)
{
	const char *argv[32] = { "wherry" };
	pid_t parent = getpid();
	int out[2];

	for (size_t i = 0; arguments[i]; i++) {
		want_true(i + 2 < sizeof(argv) / sizeof(*argv), "too many words");
		argv[i + 1] = arguments[i];
	}
	*command = (struct command){ .pid = -1 };
	want(0, pipe(out));
	command->pid = fork();
	if (command->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		unsetenv("LD_PRELOAD");
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		close(out[0]);
		close(out[1]);
		if (getppid() == parent && (!directory || !chdir(directory))) {
			if (before)
				before();
			execv(getenv("TEST_COMMAND"), (char *const *)(uintptr_t)argv);
		}
		_exit(99);
	}
	want_true(command->pid > 0, "cannot fork");
	close(out[1]);
	command->out = fdopen(out[0], "r");
}

void command_line(struct command *command, char *line, int size)
{
	want_true(fgets(line, size, command->out) != NULL, "the command has ended");
	line[strcspn(line, "\n")] = '\0';
}

int command_wait(struct command *command)
{
	size_t got = fread(command->text, 1, sizeof(command->text) - 1, command->out);
	int status;

	command->text[got] = '\0';
	want(command->pid, waitpid(command->pid, &status, 0));
	fclose(command->out);
	tell_crash("the command", status);
	if (strstr(command->text, "Sanitizer") || strstr(command->text, ": runtime error: "))
		print_error("%s\n", command->text);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int command_run(struct command *command, const char *directory, void (*before)(void),
		const char *const *arguments)
{
	command_start(command, directory, before, arguments);
	return command_wait(command);
}

/* ---- what the kernel refuses ------------------------------------------- */

struct command_refused command_refused;

static const char *refusals_missing(void)
{
	/* A kernel that knows them wants an address. */
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) && errno == EFAULT)
		return command_missing();
	return "the kernel has no seccomp filters";
}

const struct route needs_refusals = { .name = "refusals", .missing = refusals_missing };

static uint32_t refusal_of(unsigned error)
{
	return error ? SECCOMP_RET_ERRNO | error : SECCOMP_RET_ALLOW;
}

void command_refuse(void)
{
	const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_linkat, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, refusal_of(command_refused.linked)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, refusal_of(command_refused.unnamed)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(*code),
					    (struct sock_filter *)(uintptr_t)code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(98);
}

/* ---- what it has open -------------------------------------------------- */

static bool has_open(pid_t pid, const char *directory)
{
	char folder[64], path[96], target[256];
	struct dirent *entry;
	bool found = false;
	ssize_t length;
	DIR *fds;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", pid);
	fds = opendir(folder);
	while (fds && !found && (entry = readdir(fds))) {
		snprintf(path, sizeof(path), "%s/%.20s", folder, entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		if (length > 0) {
			target[length] = '\0';
			found = !strncmp(target, directory, strlen(directory));
		}
	}
	if (fds)
		closedir(fds);
	return found;
}

void command_opens(const struct command *command, const char *directory)
{
	for (int64_t until = now() + PATIENCE; !has_open(command->pid, directory);) {
		want_true(now() < until, "it opens no file in %s", directory);
		sched_yield();
	}
}

/* ---- directories ------------------------------------------------------- */

void directory_make(char path[64])
{
	const char *top = getenv("TMPDIR");

	want_true(snprintf(path, 64, "%.40s/wherry.XXXXXX", top && *top ? top : "/tmp") < 64,
		  "too long");
	want_true(mkdtemp(path) != NULL, "%s", strerror(errno));
}

static unsigned directory_each(const char *path, bool remove)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	unsigned count = 0;

	want_true(directory != NULL, "%s: %s", path, strerror(errno));
	while ((entry = readdir(directory))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		count++;
		if (remove)
			unlinkat(dirfd(directory), entry->d_name, 0);
	}
	closedir(directory);
	return count;
}

unsigned directory_count(const char *path)
{
	return directory_each(path, false);
}

void directory_remove(const char *path)
{
	directory_each(path, true);
	rmdir(path);
}
