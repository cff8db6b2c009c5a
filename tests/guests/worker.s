# The worker: a guest of a few dozen instructions that counts, watches the clock and takes orders.
#
# Entered at 1 MiB in long mode, privilege level 3: rdi = bytes of memory, rsi = number of the vCPU.
# Position independent; memory is mapped one to one. Each vCPU has a mailbox page at
# 2 MiB + number * 4 KiB; nano.rs knows the same layout:
#
#   0x00 counter    one per turn of the loop
#   0x08 last       TSC at the latest turn
#   0x10 gap_max    longest time between two turns since the last reset, in TSC cycles
#   0x18 command    0: none; the guest sets it to 0 when done
#   0x20 0x28 0x30  arguments
#   0x38 result
#   0x40 done       commands carried out
#   0x48 threshold  gaps of at least this many cycles are logged
#   0x50 logged     gaps in the log
#   0x58 once       1: after the next logged gap say its cycles on the console (six bytes of seven
#                   bits, the lowest first) and power off
#   0x60 memory     bytes of memory, written at entry
#   0x68 held       1 while it stands still
#   0x100           the log: TSC before and after each gap, at most 200
#
# A gap that a fork falls into begins at the same TSC in the source and in every child.

    .pushsection .rodata.ramet_nano_worker, "a"
    .globl ramet_nano_worker
    .globl ramet_nano_worker_end
ramet_nano_worker:
    mov rbx, rsi
    shl rbx, 12
    add rbx, 0x200000
    mov [rbx + 0x60], rdi
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov [rbx + 0x08], rax

.Lturn:
    mov rax, [rbx + 0x18]
    test rax, rax
    jnz .Lcommand
    inc qword ptr [rbx]
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r8, [rbx + 0x08]
    mov [rbx + 0x08], rax
    mov rcx, rax
    sub rcx, r8
    cmp rcx, [rbx + 0x10]
    jbe .Lshort
    mov [rbx + 0x10], rcx
.Lshort:
    cmp rcx, [rbx + 0x48]
    jb .Lturn
    mov r9, [rbx + 0x50]
    cmp r9, 200
    jae .Lfull
    shl r9, 4
    mov [rbx + r9 + 0x100], r8
    mov [rbx + r9 + 0x108], rax
    inc qword ptr [rbx + 0x50]
.Lfull:
    cmp qword ptr [rbx + 0x58], 1
    jne .Lturn
    mov r9d, 6
    mov dx, 0x3f8
.Lsay:
    mov rax, rcx
    and al, 0x7f
    out dx, al
    shr rcx, 7
    dec r9d
    jnz .Lsay
    mov dx, 0x604
    mov al, 0x34
    out dx, al
.Loff:
    pause
    jmp .Loff

# rsi, rdi, rcx hold the arguments from here on.
.Lcommand:
    mov rsi, [rbx + 0x20]
    mov rdi, [rbx + 0x28]
    mov rcx, [rbx + 0x30]
    cmp rax, 1
    je .Ltouch
    cmp rax, 2
    je .Lfill
    cmp rax, 3
    je .Lhash
    cmp rax, 4
    je .Lreset
    cmp rax, 5
    je .Lhold
    cmp rax, 6
    je .Lout
    cmp rax, 7
    je .Lfault
    jmp .Ldone

# TOUCH(start, length, stride): write one word every stride bytes.
.Ltouch:
    add rdi, rsi
.Ltouch_next:
    cmp rsi, rdi
    jae .Ldone
    inc qword ptr [rsi]
    add rsi, rcx
    jmp .Ltouch_next

# FILL(start, length, seed): every word becomes (address ^ seed) * K.
.Lfill:
    add rdi, rsi
    mov r10, 0x9E3779B97F4A7C15
.Lfill_next:
    cmp rsi, rdi
    jae .Ldone
    mov rax, rsi
    xor rax, rcx
    imul rax, r10
    mov [rsi], rax
    add rsi, 8
    jmp .Lfill_next

# HASH(start, length): result = for each word, (result ^ word) * FNV, rotated.
.Lhash:
    add rdi, rsi
    xor eax, eax
    mov r10, 0x100000001B3
.Lhash_next:
    cmp rsi, rdi
    jae .Lhash_end
    xor rax, [rsi]
    imul rax, r10
    rol rax, 23
    add rsi, 8
    jmp .Lhash_next
.Lhash_end:
    mov [rbx + 0x38], rax
    jmp .Ldone

# RESET(threshold, once): forget the gaps.
.Lreset:
    mov [rbx + 0x48], rsi
    mov [rbx + 0x58], rdi
    mov qword ptr [rbx + 0x10], 0
    mov qword ptr [rbx + 0x50], 0
    jmp .Ldone

# HOLD: say so, then stand still, without a write to memory, until the command is another.
.Lhold:
    mov qword ptr [rbx + 0x68], 1
.Lhold_on:
    pause
    cmp qword ptr [rbx + 0x18], 5
    je .Lhold_on
    mov qword ptr [rbx + 0x68], 0
    jmp .Lturn

# OUT(port, byte).
.Lout:
    mov rdx, rsi
    mov rax, rdi
    out dx, al
    jmp .Ldone

# FAULT: there is no IDT, so this is a triple fault.
.Lfault:
    ud2

# The time a command took is no gap.
.Ldone:
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov [rbx + 0x08], rax
    inc qword ptr [rbx + 0x40]
    mov qword ptr [rbx + 0x18], 0
    jmp .Lturn
ramet_nano_worker_end:
    .popsection
