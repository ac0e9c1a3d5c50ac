/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of libwherry's objects that the world answers: sim_NAME() is what they call instead of
 * NAME(), and promises the same. calls.txt lists them. */
#ifndef SIM_CALLS_H
#define SIM_CALLS_H

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* descriptor.c */
int sim_eventfd(unsigned count, int flags);
int sim_timerfd_create(int clock, int flags);
int sim_timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old);
int sim_epoll_create1(int flags);
int sim_epoll_ctl(int fd, int op, int target, struct epoll_event *event);
int sim_epoll_wait(int fd, struct epoll_event *out, int max, int timeout);
int sim_poll(struct pollfd *look, nfds_t count, int timeout);
int sim_ppoll(struct pollfd *look, nfds_t count, const struct timespec *timeout,
	      const sigset_t *mask);
ssize_t sim_read(int fd, void *bytes, size_t length);
ssize_t sim_write(int fd, const void *bytes, size_t length);
int sim_close(int fd);

/* call-socket.c */
int sim_socket(int domain, int type, int protocol);
int sim_bind(int fd, const struct sockaddr *address, socklen_t length);
int sim_listen(int fd, int backlog);
int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int sim_connect(int fd, const struct sockaddr *address, socklen_t length);
int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int sim_ioctl(int fd, unsigned long request, void *argument);
ssize_t sim_send(int fd, const void *bytes, size_t length, int flags);
ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t sim_recv(int fd, void *bytes, size_t length, int flags);
ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags);
int sim_shutdown(int fd, int how);

/* shared.c */
int sim_memfd_create(const char *name, unsigned flags);
int sim_ftruncate(int fd, off_t length);
int sim_fchmod(int fd, mode_t mode);
int sim_flock(int fd, int operation);
int sim_fstat(int fd, struct stat *out);
int sim_fcntl(int fd, int command, ...);
int sim_dup3(int fd, int at, int flags);
int sim_open(const char *path, int flags, ...);
void *sim_mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset);
int sim_munmap(void *base, size_t length);
ssize_t sim_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
			     const struct iovec *remote, unsigned long remote_count,
			     unsigned long flags);
ssize_t sim_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
			      const struct iovec *remote, unsigned long remote_count,
			      unsigned long flags);

/* disk.c */
struct statfs;
int sim_fstatfs(int fd, struct statfs *out);
ssize_t sim_preadv(int fd, const struct iovec *parts, int count, off_t at);
ssize_t sim_preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags);
ssize_t sim_pwritev(int fd, const struct iovec *parts, int count, off_t at);
ssize_t sim_pwrite(int fd, const void *bytes, size_t length, off_t at);
ssize_t sim_pread(int fd, void *bytes, size_t length, off_t at);
int sim_fdatasync(int fd);
int sim_fsync(int fd);
int sim_futimens(int fd, const struct timespec times[2]);
off_t sim_lseek(int fd, off_t at, int whence);

/* names.c */
int sim_openat(int fd, const char *name, int flags, ...);
int sim_mkdirat(int fd, const char *name, mode_t mode);
int sim_unlinkat(int fd, const char *name, int flags);
int sim_renameat(int from_fd, const char *from, int to_fd, const char *to);
int sim_fstatat(int fd, const char *name, struct stat *out, int flags);
int sim_stat(const char *path, struct stat *out);
char *sim_realpath(const char *path, char *out);
DIR *sim_fdopendir(int fd);
struct dirent *sim_readdir(DIR *folder);
int sim_closedir(DIR *folder);

/* call-time.c */
int sim_clock_gettime(clockid_t clock, struct timespec *out);
time_t sim_time_call(time_t *out);
int sim_nanosleep(const struct timespec *time, struct timespec *left);
int sim_sched_yield(void);
int sim_sched_getcpu(void);
int sim_get_nprocs(void);
char *sim_secure_getenv(const char *name);
int sim_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *out);
int sim_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
ssize_t sim_getrandom(void *out, size_t length, unsigned flags);
pid_t sim_getpid(void);
int sim_gethostname(char *out, size_t length);
void sim_json_setup(void); /* Jansson's allocations are libwherry's */
void sim_secrets_setup(void); /* OpenSSL's random numbers, from the seed as well */

/* call-thread.c */
int sim_pthread_mutexattr_init(pthread_mutexattr_t *attr);
int sim_pthread_mutexattr_settype(pthread_mutexattr_t *attr, int type);
int sim_pthread_mutexattr_destroy(pthread_mutexattr_t *attr);
int sim_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *attr);
int sim_pthread_mutex_destroy(pthread_mutex_t *lock);
int sim_pthread_mutex_lock(pthread_mutex_t *lock);
int sim_pthread_mutex_trylock(pthread_mutex_t *lock);
int sim_pthread_mutex_unlock(pthread_mutex_t *lock);
int sim_pthread_rwlock_init(pthread_rwlock_t *lock, const pthread_rwlockattr_t *attr);
int sim_pthread_rwlock_destroy(pthread_rwlock_t *lock);
int sim_pthread_rwlock_rdlock(pthread_rwlock_t *lock);
int sim_pthread_rwlock_wrlock(pthread_rwlock_t *lock);
int sim_pthread_rwlock_unlock(pthread_rwlock_t *lock);
int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int sim_pthread_cond_destroy(pthread_cond_t *cond);
int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
			       const struct timespec *until);
int sim_pthread_cond_signal(pthread_cond_t *cond);
int sim_pthread_cond_broadcast(pthread_cond_t *cond);
int sim_pthread_once(pthread_once_t *once, void (*run)(void));
int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
		       void *arg);
int sim_pthread_join(pthread_t thread, void **out);
int sim_pthread_detach(pthread_t thread);
pthread_t sim_pthread_self(void);
int sim_pthread_setname_np(pthread_t thread, const char *name);
int sim_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
long sim_syscall(long number, ...);

/* call-library.c */
void *sim_dlopen(const char *path, int flags);
void *sim_dlsym(void *handle, const char *name);
int sim_dlclose(void *handle);

/* call-memory.c */
void *sim_malloc(size_t size);
void *sim_calloc(size_t count, size_t size);
void *sim_realloc(void *old, size_t size);
void *sim_aligned_alloc(size_t align, size_t size);
char *sim_strdup(const char *text);
void sim_free(void *address);

#endif
