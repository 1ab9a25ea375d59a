/* CPUID without newer vector instructions: cc -shared -fPIC -DKIND=AVX2 cpuid.c -o cpuid.so, then LD_PRELOAD=cpuid.so.

Linux lets CPUID fault (arch_prctl(ARCH_SET_CPUID, 0), Intel since Ivy Bridge); the handler of the fault answers with
the processor's values, less the bits of newer kinds. All libraries of a process see them: TensorFlow, XLA, oneDNN, MKL,
PyTorch and its compilers. The bits are those of Intel's manual, volume 2A, CPUID. */

#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define GENERAL_PROTECTION 13 /* The trap of a CPUID that faults. */

enum { EAX, EBX, ECX, EDX };
enum { AVX2, AVX512F, AVX512_BF16, AMX }; /* KIND is one of the first three. */

/* Bits that processors have from a kind on. */
static const struct {
  uint32_t leaf, subleaf;
  int register_, kind;
  uint32_t bits;
} NEWER[] = {
    {7, 0, EBX, AVX512F, 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31},
    {7, 0, ECX, AVX512F, 1u << 1 | 1u << 6 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 14},
    {7, 0, EDX, AVX512F, 1u << 2 | 1u << 3 | 1u << 8},
    {7, 0, EDX, AMX, 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25}, /* With AVX512_FP16, which came with AMX. */
    {7, 1, EAX, AVX512_BF16, 1u << 4 | 1u << 5},                 /* With AVX_VNNI. */
    {7, 1, EAX, AMX, 1u << 21 | 1u << 23},
    {7, 1, EDX, AMX, ~0u}, /* Instructions after AMX, and AVX10. */
    {13, 0, EAX, AVX512F, 7u << 5},
    {13, 0, EAX, AMX, 3u << 17},
};
static const uint32_t SKYLAKE = 0x000506e3; /* Compilers choose by the model, too: the last one without AVX-512. */

static struct sigaction theirs; /* What the program has asked for. */
static int (*real_sigaction)(int, const struct sigaction*, struct sigaction*);
static int (*real_pthread_sigmask)(int, const sigset_t*, sigset_t*);
static int (*real_sigprocmask)(int, const sigset_t*, sigset_t*);

static long let_cpuid(long is_allowed) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"((long)SYS_arch_prctl), "D"((long)ARCH_SET_CPUID), "S"(is_allowed)
                   : "rcx", "r11", "memory");
  return result;
}

static void limit(uint32_t leaf, uint32_t subleaf, uint32_t* values) {
  for (size_t i = 0; i < sizeof NEWER / sizeof *NEWER; ++i)
    if (NEWER[i].leaf == leaf && NEWER[i].subleaf == subleaf && NEWER[i].kind > KIND)
      values[NEWER[i].register_] &= ~NEWER[i].bits;
  if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) memset(values, 0, 4 * sizeof *values); /* AMX, AVX10. */
  if (leaf == 1 && KIND == AVX2) values[EAX] = SKYLAKE;
}

static void answer(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* code = (const unsigned char*)registers[REG_RIP];
  if (registers[REG_TRAPNO] == GENERAL_PROTECTION && code[0] == 0x0f && code[1] == 0xa2) {
    uint32_t leaf = registers[REG_RAX], subleaf = registers[REG_RCX], values[4];
    let_cpuid(1);
    __cpuid_count(leaf, subleaf, values[EAX], values[EBX], values[ECX], values[EDX]);
    let_cpuid(0);
    limit(leaf, subleaf, values);
    registers[REG_RAX] = values[EAX];
    registers[REG_RBX] = values[EBX];
    registers[REG_RCX] = values[ECX];
    registers[REG_RDX] = values[EDX];
    registers[REG_RIP] += 2;
  } else if (theirs.sa_flags & SA_SIGINFO) {
    theirs.sa_sigaction(number, info, context);
  } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
    theirs.sa_handler(number);
  } else { /* The instruction faults again, and ends the process. */
    struct sigaction ends = {.sa_handler = SIG_DFL};
    real_sigaction(SIGSEGV, &ends, NULL);
  }
}

/* The program's own handlers and masks of SIGSEGV must not replace ours. */

int sigaction(int number, const struct sigaction* new, struct sigaction* old) {
  if (number != SIGSEGV) return real_sigaction(number, new, old);
  struct sigaction before = theirs;
  if (new) theirs = *new;
  if (old) *old = before;
  return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
  return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

static const sigset_t* without_ours(const sigset_t* set, int how, sigset_t* copy) {
  if (!set || how == SIG_UNBLOCK) return set;
  *copy = *set;
  sigdelset(copy, SIGSEGV);
  return copy;
}

int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  sigset_t copy;
  return real_pthread_sigmask(how, without_ours(set, how, &copy), old);
}

int sigprocmask(int how, const sigset_t* set, sigset_t* old) {
  sigset_t copy;
  return real_sigprocmask(how, without_ours(set, how, &copy), old);
}

__attribute__((constructor)) static void start(void) {
  static const char message[] = "error: CPUID cannot be limited on this processor\n";
  real_sigaction = dlsym(RTLD_NEXT, "sigaction");
  real_pthread_sigmask = dlsym(RTLD_NEXT, "pthread_sigmask");
  real_sigprocmask = dlsym(RTLD_NEXT, "sigprocmask");
  struct sigaction ours = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  real_sigaction(SIGSEGV, &ours, &theirs);
  if (let_cpuid(0)) _exit(write(2, message, sizeof message - 1) < 0 ? 4 : 3);
}
