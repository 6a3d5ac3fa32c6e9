"""Scripts as users have them: each ends, or looks at its world, in another way."""

import textwrap

SCRIPTS = {
    'its world': """
        '''Says what it sees.'''
        import sys
        import sibling

        def function():
            pass

        print(__name__, __doc__, __file__, __package__ or None, sibling.__name__)
        print(__spec__ and (__spec__.name, __spec__.origin, __cached__))
        print(sys.argv[1:], sys.path[0], sys.modules['__main__'].function is function)
        print(function.__module__)
        print(sys.stdin.read())
        """,
    'an exception': """
        def fail():
            raise ValueError('of the script')

        fail()
        """,
    'a chain of exceptions': """
        try:
            import not_there
        except ImportError as error:
            raise RuntimeError('of the script') from error
        """,
    'a broken import': """
        import broken
        """,
    'a syntax error': """
        print('never')
        x = = 1
        """,
    'an exit code': """
        import sys
        sys.exit(3)
        """,
    'an exit message': """
        import sys
        sys.exit('I give up')
        """,
    'an interrupt': """
        raise KeyboardInterrupt
        """,
    'a hook of its own': """
        import sys, traceback

        def hook(kind, error, trace):
            print(kind, error, [frame.name for frame in traceback.extract_tb(trace)])

        sys.excepthook = hook
        raise ValueError('of the script')
        """,
    'an error in a thread and at exit': """
        import atexit, threading

        atexit.register(print, 'bye')
        thread = threading.Thread(target=lambda: print('in a thread', __name__))
        thread.start()
        """,
    'processes and pickles': """
        import multiprocessing
        import pickle

        class Thing:
            pass

        def square(x):
            return x * x

        if __name__ == '__main__':
            print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
            for method in ('fork', 'spawn'):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(square, [1, 2, 3]))
        """,
}


def write_scripts(folder, script):
    (folder / 'script.py').write_text(textwrap.dedent(script).lstrip())
    (folder / 'sibling.py').write_text('')
    (folder / 'broken.py').write_text('import sibling\n\nsibling.nothing\n')
