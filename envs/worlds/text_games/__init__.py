"""How are the games of TextWorld and ALFWorld played, in a process that may die?"""
